# Needs tokenizers==0.23.3: for each kind of tokenizer.json with SentencePiece's compiled table of characters, and one
# without it, writes NAME/tokenizer.json with a small Unigram vocabulary, and cases.json: lines, their texts by the
# table, and their ids by name. The table holds a few rules of SentencePiece's nmt_nfkc.
#
#   python make.py [LINES]          160 lines if not given
#
# With more lines, such as 5000, writes cases.json to the current folder; ATTN_TOKEN_IDS_DIR names that folder for the
# tests.
import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
SPACE = "\u2581"
REMOVED = [*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F]
SPACES = [9, 10, 12, 13, 0xA0, 0x1680, *range(0x2000, 0x200C), 0x200E, 0x200F, 0x2028, 0x2029, 0x202F, 0x205F, 0x2581,
          0x3000, 0xFEFF, 0xFFFD]
COMPATIBLE = [*range(0xA8, 0xC0), *range(0x132, 0x134), 0x149, 0x17F, *range(0x2070, 0x2090), 0x2122, 0x212A, 0x212B,
              *range(0x2153, 0x2160), *range(0x2160, 0x2170), *range(0x2460, 0x2470), *range(0x24B6, 0x24BA), 0x3300,
              *range(0x3131, 0x3136), *range(0xF900, 0xF908), *range(0xFB00, 0xFB07), *range(0xFF01, 0xFF1C),
              *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B), *range(0xFF71, 0xFF7B), 0xFF9E, 0x1D400, 0x1D7D8, 0x1F100]
SEQUENCES = [a + b for a in "AaEeOoUu" for b in "\u0300\u0301\u0302\u0308\u030a"] + ["q\u0307\u0323", "a\u0323\u0302"]
SEQUENCES += [chr(0xFF76 + i) + "\uff9e" for i in range(4)] + ["\u1100\u1161", "\u1100\u1161\u11a8", "\u0e4d\u0e32"]


def replacements():
    rules = {chr(c): "" for c in REMOVED} | {chr(c): " " for c in SPACES} | {"\r\n": " "}
    for text in [chr(c) for c in COMPATIBLE] + SEQUENCES:
        if (form := unicodedata.normalize("NFKC", text)) != text:
            rules[text] = form
    return {key.encode(): value.encode() for key, value in rules.items()}


def charsmap(rules):
    """The table in SentencePiece's format: a double array in the layout of darts-clone, and the texts."""
    texts, places = b"", {}
    for value in sorted(set(rules.values()), key=lambda v: (-len(v), v)):
        at = texts.find(value + b"\0")  # the end of a longer text also serves
        places[value] = at if at >= 0 else len(texts)
        texts += b"" if at >= 0 else value + b"\0"
    trie = {}
    for key, value in rules.items():
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = places[value]
    units, bases = [None] * 256, set()
    units[0] = 0
    waiting = [(0, trie)]
    while waiting:
        at, node = waiting.pop(0)
        # Two nodes never share a base: otherwise bytes of one would lead to children of the other. The base of every
        # third node is whole blocks away, which is encoded differently.
        blocks = [at ^ 256 * k for k in range(1, 4)] if len(bases) % 3 == 2 else []
        base = next(b for b in [*blocks, *range(1, 1 << 20)] if b not in bases and
                    all((b ^ byte) >= len(units) or units[b ^ byte] is None for byte in node))
        bases.add(base)
        while any((base ^ byte) >= len(units) for byte in node):
            units += [None] * 256
        offset = at ^ base
        in_blocks = offset >= 256 and offset % 256 == 0
        units[at] |= (0 in node) << 8 | in_blocks << 9 | (offset >> 8 if in_blocks else offset) << 10
        for byte, child in sorted(node.items()):
            units[base ^ byte] = (1 << 31) | child if byte == 0 else byte
            if byte != 0:
                waiting.append((base ^ byte, child))
    units = [unit or 0 for unit in units]
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


WORDS = ["hello", "world", "the", "\ufb01ne", "\ufb03", "o\ufb00er", "\uff28\uff45\uff4c\uff4c\uff4f", "\uff21\u0301", "caf\u00e9", "cafe\u0301",
         "A\u030a\u212b", "\u2460\u2461\u24b6", "\u2167", "\u00bd", "\u2153\u00b2", "\u2122\u001eg", "\u1100\u1161", "\u1100\u1161\u11a8\u11a8", "\uac00",
         "\u1112\u1161\u11ab", "\uff76\uff9e", "\uff76", "\uff71\uff9e", "\u3131", "\uf900", "\u3300", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd",
         "\U0001f1e9\U0001f1ea\U0001f1eb", "\U0001d400", "\u00aa\u0308", "\u00a8", "q\u0307\u0323", "q\u0323\u0307", "a\u0302\u0323", "\u0e01\u0e33", "\u0e4d\u0e32",
         "\u0915\u094d\u0937", "\u0600\u0661", "\u200b", "\u200c", "\u200d", "\u00ad", "\ufeff", "\ufe0f", "\u2764\ufe0f", "\u0000", "\u0001", "\u001f", "\u007f",
         "\u0085", "\t", "\n", "\r\n", "\r", "\u000b", "\u000c", "\u00a0", "\u2003", "\u2028", "\u3000", " ", " ", " ", "  ", "   ", SPACE, SPACE + SPACE,
         "<s>", "</s>", "<mask>", "<unk>", "<tool>", "<0x0A>", "\u4e2d\u6587", "\u65e5", "\u0301", ".", ",", "!", "1", "23", "\ufffd", "\uff01", "\u017f",
         "\u0132", "x\u00a0\u0301", "\t\u0301", "e\u0301\u0301", "\uff45\u0301\u0302", "\u2470", "\U0001f100"]
FIRST = ["", " ", "  ", "\u200b", "\u0001", "\u0001hello", "\u0001 hello", "\u200bhello", " \u200b hello ", "hello\u0001", "\u0001\u0301a", "hello  ",
         "  hello  world  ", "\u3000hello\u3000\u3000world\n", "hello <mask> world", "hello \u3000<mask>world", "<mask>", " <mask> ", "\ufb03",
         "<tool>hello", "\u0001<s>hello", "</s> hello"]


def make_lines(count):
    draw = random.Random(53)
    return FIRST + ["".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count - len(FIRST))]


def build(name, normalizer, pre_tokenizer, decoder, before, unknown=3):
    """A tokenizer of words, parts of words, and some of the characters that the table produces."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", SPACE]
    for word in ["hello", "world", "the", "fine", "offer", "caf\u00e9", "TM", "\u30ac", "\uac00", "\u4e2d\u6587", "ffi", "he", "ell", "lo", "wor",
                 SPACE * 2, "12", "<0x0A>"]:
        pieces += [word, SPACE + word] if word.isalpha() else [word]
    pieces += list("abcdefghijlorstwxHAT012345.,!\u00e9\u0301\u00c5\u65e5\u200d\u0000\u000b\U0001f44d\u1100\u1161\u3042")
    scores = [0.0] * 4 + [-3.0] + [-2.0 - 0.37 * (i % 17) - 1.5 / len(p) for i, p in enumerate(pieces[5:])]
    t = Tokenizer(models.Unigram(list(zip(pieces, scores)), unk_id=unknown, byte_fallback=False))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre_tokenizer, decoder
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    t.add_tokens([AddedToken("<tool>", normalized=False)])
    t.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", "</s>"], pair=[*before, "$A", "</s>", "$B", "</s>"], special_tokens=[("<s>", 0), ("</s>", 2)])
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    t.save(str(folder / "tokenizer.json"), pretty=False)
    return t


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    table = normalizers.Precompiled(charsmap(replacements()))
    metaspace = lambda scheme="always": pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    words = lambda: pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()])
    spaces = lambda scheme="always": decoders.Metaspace(prepend_scheme=scheme)
    several = lambda to: normalizers.Replace(Regex(" {2,}"), to)
    tokenizers = {
        # In the two forms of XLM-RoBERTa's files and of the sentence-transformers based on it.
        "xlm_roberta": build("xlm_roberta", table, words(), spaces(), ["<s>"]),
        "xlm_roberta_spaces": build("xlm_roberta_spaces", normalizers.Sequence([table, several(" ")]), words(), spaces(), ["<s>"]),
        # In the form of T5's files, and of those that transformers converts from SentencePiece's files.
        "t5": build("t5", normalizers.Sequence([table, normalizers.Strip(left=False, right=True), several(SPACE)]),
                    metaspace(), spaces(), []),
        "t5_first": build("t5_first", normalizers.Sequence([table, normalizers.Strip(left=False, right=True), several(SPACE)]),
                          metaspace("first"), spaces("first"), []),
        "no_table": build("no_table", normalizers.Sequence([normalizers.Strip(left=True, right=True), several(" ")]), metaspace(),
                          spaces(), []),
    }
    lines = make_lines(count)
    dump = lambda row: json.dumps(row, ensure_ascii=True, separators=(",", ":"))
    columns = {"lines": lines, "normal": [table.normalize_str(line) for line in lines]}
    for name, tokenizer in tokenizers.items():
        columns[name] = [tokenizer.encode(line).ids for line in lines]
        columns[name + ".text"] = [tokenizer.decode(ids) for ids in columns[name]]
    text = ",\n".join(f'"{name}":[\n' + ",\n".join(map(dump, rows)) + "\n]" for name, rows in columns.items())
    (HERE if count == 160 else pathlib.Path(".")).joinpath("cases.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
