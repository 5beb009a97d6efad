# Writes token_ids.json, the ids of 500 unusual lines of text. Needs tokenizers==0.23.3.
#
#   python make_token_ids.py            with the model from examples/fetch_model.sh
#
# Makes the tokenizer from vocab.txt by the description in the tokenizer.json of all-MiniLM-L6-v2, but with the model's
# own limit of 256 tokens and without padding. Random lines are seeded, and contain only characters that Unicode 3.2 had
# and whose properties have not changed since: results do not depend on the version of the Unicode tables.
import json
import os
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

NUM_LINES = 500
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def model_dir():
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ["HOME"] + "/.cache"
    return pathlib.Path(os.environ.get("ATTN_MODEL_DIR") or cache + "/attn/all-MiniLM-L6-v2")


def make_tokenizer():
    vocab = WordPiece.read_file(str(model_dir() / "vocab.txt"))
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.enable_truncation(256)
    return tokenizer


FIXED = [
    # Empty texts, and texts that become empty.
    "",
    " ",
    "   \t \u00a0 \u3000 ",
    "\u200b\u200c\u200d\ufeff\u00ad",
    "\x00\x01\x02\x1f\x7f\x80\x9f",
    "\u0301\u0308\u20d7",
    "\ufffd\ufffd",
    "\ue000\uf8ff\U0010fffd",
    # Plain text and its punctuation.
    "The quick brown fox jumps over the lazy dog.",
    "Hello, World! How are you?",
    "HELLO hello HeLLo hELLO",
    "don't won't they'll it's John's dogs'",
    "\u2018curly\u2019 \u201cquotes\u201d \u201elow\u201f \u00abguillemets\u00bb \u2039single\u203a",
    "en\u2013dash em\u2014dash minus\u2212sign hyphen\u2010 non\u2011breaking figure\u2012 bar\u2015",
    "ellipsis\u2026 three... dots . . .",
    "!?!?!? ;;; ::: ... --- ___ *** ((( ))) [[[ ]]] {{{ }}} <<< >>>",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "$5.99 \u20ac7,50 \u00a33 \u00a5100 50\u00a2 5% 3\u2030 \u00a72 \u00b64",
    "1 + 1 = 2; 3 < 4 > 2; a|b ~c ^d `e`",
    "\u00a1Hola! \u00bfQu\u00e9 tal?",
    "\u3001\u3002\u300c\u300d\u30fb\uff01\uff1f\u2e2e\u203d\u2042\u2020\u2021",
    "pseudopseudohypoparathyroidism antidisestablishmentarianism floccinaucinihilipilification",
    "unaffable embeddings tokenization transformers subwordization",
    "supercalifragilisticexpialidocious and Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch",
    "3.14159 2,718,281 1e-5 0x1F 1st 2nd 3rd 100th 2024-02-29 23:59:59",
    "\u00bd \u00bc \u00be \u00b2 \u00b3 \u2153 \u2460 \u2474 \u248c \u2776",
    "\u0660\u0661\u0662 \u0966\u0967\u0968 \uff10\uff11\uff12",
    # URLs, addresses, code, paths.
    "https://www.example.com/a/b?c=d&e=f#g https://user:pw@host:8080/~me/%20x",
    "Write to first.last+tag@mail.example.org or call +1 (555) 010-9999 ext. 7",
    "std::vector<std::unique_ptr<T>> v{}; for (auto&& x : v) { f(x->y[0], *x); } // ok?",
    "def f(x: int) -> str: return f\"{x!r:>10}\"  # Python",
    "SELECT * FROM t WHERE a <> 'b''c' AND d LIKE '%e_f%';",
    "C:\\Users\\me\\file.txt /usr/local/bin ../x ~/.bashrc",
    "snake_case camelCase PascalCase SCREAMING_SNAKE kebab-case dotted.name",
    "{\"key\": [1, 2.5e-3, null, true], \"\\u00e9\": \"\\n\"}",
    "\\frac{a}{b} \\alpha_{ij}^2 $x$ <br/> &amp; &#233;",
    "^(?:[a-z0-9!#$%&'*+/=?^_`{|}~-]+)$",
    # Accents, composed and decomposed; letters without a decomposition are kept.
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9 \u00c5ngstr\u00f6m \u00c9COLE \u00fcber Stra\u00dfe",
    "cafe\u0301 nai\u0308ve re\u0301sume\u0301 A\u030angstro\u0308m",
    "\u0141\u00f3d\u017a \u0110\u00e0 N\u1eb5ng \u00d8resund \u00deingvellir \u00c6r\u00f8 \u0152uvre \u0131\u0130iI",
    "\u017bo\u0142\u0105d\u017a \u010cesk\u00fd \u0218\u021b \u0123irts \u0171 \u0151 \u1e9e \u00df ss SS",
    "Ti\u1ebfng Vi\u1ec7t \u0110\u01b0\u1eddng ph\u1ed1 \u1eea\u1eea",
    "a\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307 Z\u0351\u036b\u0343a\u0329\u032bl\u034fg\u0321o\u0322",
    "e\u20dd \u0488\u0438 x\u20d2 k\u0323\u0307 k\u0307\u0323",
    "\u212b \u2126 \u212a \u1e9b\u0323 \u0344 \u0374 \u037e \u0387 \u1fef \u2000\u2001",
    "\u0130stanbul \u0130\u0130\u0130 I\u0307 i\u0307 \u0131",
    "\u01c4 \u01c5 \u01c6 \u01c7 \u01ca \u01f1 \u01f2 \u1fbc \u1fcc",
    "\ufb00 \ufb01 \ufb02 \ufb03 \ufb04 \ufb05 of\ufb01ce \ufb02ower",
    "\u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3 \u03a3\u0399\u03a3\u03a5\u03a6\u039f\u03a3 \u03c3\u03c2 \u1f08\u03b8\u1fc6\u03bd\u03b1\u03b9",
    "\u1f80 \u1f88 \u1fb3 \u1ff7 \u0390 \u03b0 \u03aa \u0385 \u1fc1",
    "\u0419\u043e\u0436\u0438\u043a \u0451\u043b\u043a\u0430 \u0401\u0416 \u041c\u043e\u0441\u043a\u0432\u0430 \u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u040e\u0457",
    "\u0531\u0580\u0574\u0565\u0576 \u0587 \u10a0\u10d0 \u2c00 \U00010400\U00010428 \u13a0",
    # East Asia.
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u6211\u559c\u6b22machine\u5b66\u4e60 and 2024\u5e74",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3092\u30c6\u30b9\u30c8\u3059\u308b\u3002\u30ab\u30bf\u30ab\u30ca\u3068\u3072\u3089\u304c\u306a\u3002",
    "\u304c\u304e\u3050 \u304b\u3099 \u30d1\u30d4\u30d7 \u30cf\u309a \u30fc\u30fd\u30fe \u309b\u309c \uff76\uff9e",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5 \uac01 \uac00 \uac02 \u1100\u1161\u11a8 \u3131\u314f \uffa1",
    "\u3007\u3021 \u3400\u4dbf \u4e00\u9fff \uf900\ufaff \U00020000\U0002a6df \U0002f800 \U0002fa1d",
    "\U0002a700\U0002b740\U0002b820\U0002b91f\U0002b920\U0002ceaf\U0002ceb0",
    "\u2e80\u2f00\u31c0 \u3220 \u3280 \u33a1 \u32ff",
    "\uff26\uff35\uff2c\uff2c\u3000\uff37\uff29\uff24\uff34\uff28 \uff41\uff42\uff43 \uff01\uff03\uff3f \uffe5",
    "\u4e2d\u0301\u6587\u200b\u5b57 x\u4e2dy\u4e2d\u4e2dz",
    # South and South-East Asia.
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0935\u093e\u0915\u094d\u092f \u0964 \u0958 \u0915\u093c",
    "\u09ac\u09be\u0982\u09b2\u09be \u09ac\u09be\u0995\u09cd\u09af \u09cb \u09c7\u09be \u09dc",
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0b9a\u0bca\u0bb2\u0bcd \u0bcb \u0c24\u0c46\u0c32\u0c41\u0c17\u0c41 \u0c95\u0ca8\u0ccd\u0ca8\u0ca1 \u0d2e\u0d32\u0d2f\u0d3e\u0d33\u0d02",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 \u0e19\u0e49\u0e33 \u0e33 \u0e4f\u0e5b",
    "\u0ea5\u0eb2\u0ea7 \u1019\u103c\u1014\u103a\u1019\u102c \u1781\u17d2\u1798\u17c2\u179a \u0f56\u0f7c\u0f51\u0f0b\u0f61\u0f72\u0f42 \u0f0d",
    "\u0dc3\u0dd2\u0d82\u0dc4\u0dbd \u0ddd \u1b05\u1b35 \u1b06",
    # Right to left.
    "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645\u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f",
    "\u0628\u0650\u0633\u0652\u0645\u0650 \u0671\u0644\u0644\u0651\u064e\u0647\u0650 \u0623\u0625\u0622\u0624\u0626 \ufefb \u0640\u0640\u0640",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd\u05be\u05d8\u05d5\u05d1 \u05e9\u05bc\u05c1 \ufb2a \u05f3\u05f4",
    "\u202eright to left\u202c \u200fmark\u200e \u2066isolate\u2069 \u061c",
    "\u0641\u0627\u0631\u0633\u06cc \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0686\u067e\u06af \u06f0\u06f1\u06f2 \u066a\u066b\u066c",
    "\u0710\u0712\u0713\u0731 \u0700\u070d \u0780\u07a6 \u07ca\u07eb",
    # Emoji and symbols.
    "\U0001f600 \U0001f602\U0001f602 I \u2764\ufe0f you \U0001f44d\U0001f3fd!",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 #\ufe0f\u20e3",
    "word\U0001f525word \U0001f9d1\U0001f3ff\u200d\U0001f4bb \U0001fae0\U0001f979 \u263a\ufe0e",
    "\U000e0067\U000e0062\U000e007f flag tags \U0001f3f4",
    "\u2122 \u00a9 \u00ae \u2120 \u2605\u2606 \u2192\u21d2 \u2713\u2717 \u266a \u221e \u2211\u222b\u221a",
    "\U0001d400\U0001d41a \U0001d4d7\U0001d4ee\U0001d4f5\U0001d4f5\U0001d4f8 \U0001d7d8 \u210d \u2102 \U0001d15e \U0001d160",
    "\u2070\u00b9\u00b2\u2080\u2081 x\u00b2 H\u2082O \u1d43\u1d47 \u02b0\u02b7 \u1e00",
    "\u24b6\u24d0 \U0001f130 \U0001f170 \u33c2 \u2100",
    "\u2500\u2502\u250c\u2588\u2591 \u2800\u28ff \ufffc",
    # White space and controls inside words.
    "tab\tseparated\tvalues and\u00a0no-break\u2007figure\u202fnarrow\u3000ideographic",
    "line\u2028separator paragraph\u2029separator next\u0085line vertical\x0btab form\x0cfeed",
    "carriage\rreturn carriage\r\nline feed\nend\n",
    "soft\u00adhyphen zero\u200bwidth\u2060joiner\ufeffbom \u180emongolian \u1680ogham",
    "\ufeffstarts with a byte order mark",
    "nul\x00byte bell\x07 escape\x1b[31mred\x1b[0m delete\x7f",
    "  leading and   inner    and trailing   ",
    "interlinear \ufff9a\ufffab\ufffb \u206a\u206f \u0600\u06dd \U0001d173\U0001d17a",
    "non-characters \ufdd0\ufdef\ufffe\uffff\U0001fffe\U0010ffff unassigned \u0378\u0379 \U000e0080",
    # Special tokens spelled out.
    "[CLS]",
    "[SEP][SEP]",
    "[CLS] already there [SEP]",
    "the man [MASK] at the [MASK].",
    "un[MASK]able pre[UNK]fix[PAD]",
    "[cls] [Sep] [mask] [pad] [unk] lower case",
    "[CLS [MASK [[CLS]] [ CLS ] [CLS] ]CLS[",
    "[MA\u200bSK] [MA\u0301SK] \uff3bCLS\uff3d [M\u0391SK]",
    "cafe[SEP]\u0301 \u4e2d[UNK]\u6587",
    "[unused0] [unused1] [unused99] ##ing ## #hash ##",
    "[MASK]" * 300,
    "[PAD] [PAD] x [PAD]",
    # Lengths: words of 99, 100, 101 characters (an accent does not count), and texts around 256 tokens.
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "b" * 100 + " " + "b" * 101 + " c",
    "\u00e9" * 100,
    "e\u0301" * 100,
    "e\u0301" * 101,
    "\u00df" * 100,
    "z" * 5000,
    "\u4e2d" * 400,
    "." * 400,
    "x" * 60 + "." + "y" * 60,
    "\uac00" * 34,
    "\uac00" * 50,
    "\uac01" * 33 + "a",
    "\uac01" * 34,
    " ".join(["word"] * 253),
    " ".join(["word"] * 254),
    " ".join(["word"] * 255),
    " ".join(["word"] * 252) + " tokenization",
    " ".join(["word"] * 253) + " tokenization",
    " ".join(["word"] * 254) + "[SEP]",
    " ".join(["word"] * 253) + "[SEP]tail",
    " ".join(["the number %d" % i for i in range(300)]),
    "\u00c9" * 40 + " " + "e" * 40,
    "0123456789" * 11,
    "hyphen-" * 90,
]

# Parts of random lines: blocks of characters (first, last); each word comes from one block.
BLOCKS = [
    (0x0021, 0x007E), (0x0021, 0x007E), (0x00A0, 0x017F), (0x0180, 0x024F), (0x0250, 0x02FF),
    (0x0370, 0x03FF), (0x0400, 0x052F), (0x0530, 0x058F), (0x0590, 0x05FF), (0x0600, 0x06FF),
    (0x0700, 0x07BF), (0x0900, 0x097F), (0x0980, 0x0DFF), (0x0E00, 0x0EFF), (0x0F00, 0x0FFF),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
    (0x1680, 0x16FF), (0x1780, 0x17FF), (0x1800, 0x1884), (0x1E00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x20CF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2400, 0x27BF), (0x2E80, 0x2FDF),
    (0x3000, 0x30FF), (0x3100, 0x33FF), (0x3400, 0x4DB5), (0x4E00, 0x9FA5), (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE20, 0xFEFF),
    (0xFF00, 0xFFEF), (0x10300, 0x1044F), (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x20000, 0x2A6D6),
    (0x2F800, 0x2FA1D), (0xE0001, 0xE007F), (0x0000, 0x009F), (0x0300, 0x036F),
]  # fmt: skip
GLUE = ["\u0301", "\u0308\u0304", "\u200d", "\u200b", "\u00ad", "\ufeff", "\u00a0", "\u3000", "-", "'", "_", "\t"]


def known_for_long(c):
    """Whether the character had its present category in Unicode 3.2."""
    old = unicodedata.ucd_3_2_0.category(c)
    return old != "Cn" and old == unicodedata.category(c)


def random_lines(count, known, vocab_words):
    rng = random.Random(20240229)
    pools = [[chr(c) for c in range(a, b + 1) if known_for_long(chr(c))] for a, b in BLOCKS]

    def word():
        kind = rng.random()
        if kind < 0.30:
            return rng.choice(vocab_words)
        if kind < 0.40:
            return "".join(rng.choice([str.upper, str.title, str.lower])(rng.choice(vocab_words)) for _ in range(3))
        if kind < 0.44:
            return rng.choice(SPECIAL)
        if kind < 0.50:
            return rng.choice(GLUE).join(rng.choice(vocab_words) for _ in range(rng.randint(2, 4)))
        if kind < 0.53:
            return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 12)))
        pool = rng.choice(pools)
        body = [rng.choice(pool) for _ in range(rng.randint(1, rng.choice([3, 8, 8, 30])))]
        if kind < 0.65:
            body.insert(rng.randint(0, len(body)), rng.choice(GLUE))
        return "".join(body)

    lines = {}  # a dict keeps the order and drops repetitions
    while len(lines) < count:
        words = [word() + rng.choice([" ", " ", " ", ""]) for _ in range(rng.choice([1, 2, 5, 10, 10, 20, 40]))]
        if "".join(words) not in known:
            lines["".join(words)] = None
    return list(lines)


def main():
    tokenizer = make_tokenizer()
    words = [w for w in sorted(tokenizer.get_vocab()) if w.isalpha()]
    lines = FIXED + random_lines(NUM_LINES - len(FIXED), FIXED, words)
    cases = [{"text": line, "ids": tokenizer.encode(line).ids} for line in lines]
    out = pathlib.Path(__file__).with_name("token_ids.json")
    rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    out.write_text("[\n" + rows + "\n]\n")
    print(f"{len(cases)} lines ({len(FIXED)} of them fixed), {sum(len(c['ids']) for c in cases)} ids -> {out.name}")


if __name__ == "__main__":
    main()
