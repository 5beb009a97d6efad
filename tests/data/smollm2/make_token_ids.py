# Needs gguf==0.19.0 tokenizers==0.23.3 numpy (in a virtual environment): writes token_ids.json, lines in many scripts
# with the ids of the package tokenizers for SmolLM2's vocabulary, and pre_tokens.json, the pieces of lines for the
# other pre-tokenizers, for which there is no vocabulary.
#
#   python make_token_ids.py [LINES]          with the file from examples/fetch_llm.sh; 300 lines if not given
#
# With more lines, such as 5000, writes the files to the current folder; ATTN_TOKEN_IDS_DIR names that folder for the
# tests.
import json
import os
import pathlib
import random
import sys

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

HERE = pathlib.Path(__file__).parent
LLM_DIR = os.environ.get("ATTN_LLM_DIR") or (
    os.environ.get("XDG_CACHE_HOME") or os.environ["HOME"] + "/.cache") + "/attn/SmolLM2-135M-Instruct"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
WORDS = """The quick brown fox jumps over 13 lazy dogs, isn't it? They'LL say WE'RE done'D
naïve café Ærøskøbing Straße œuvre İstanbul ﬁne ½ ² Ⅷ ① x² 10⁻³ €5.99 £3 ¥1,000 50% #tag @user a_b c-d e.g. U.S.A.
Съешь ещё этих мягких французских булок да выпей чаю Ўзбек ґанок Ђурђевдан 1984 года
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία Ἀθῆναι
שלום עולם בְּרֵאשִׁית יִדִישׁ
السلام عليكم كيف حالك؟ ١٢٣ ۴۵۶ می‌خواهم اُردُو
नमस्ते दुनिया क्षत्रिय १२३ हिन्दी मराठी
বাংলা ভাষা ৪৫৬ தமிழ் மொழி ௧௨௩ తెలుగు ಕನ್ನಡ മലയാളം ગુજરાતી ਪੰਜਾਬੀ සිංහල
สวัสดีชาวโลก ๑๒๓ ລາວ ខ្មែរ မြန်မာ བོད་ཡིག
你好，世界！三百六十五 日本語テキスト ひらがな カタカナ ｶﾅ １２３ 한국어 안녕하세요 대한민국
አማርኛ ქართული Հայերեն ᏣᎳᎩ ᓀᐦᐃᔭᐍᐏᐣ ⴰⵎⴰⵣⵉⵖ 𐍈𐌰𐌽 𝔘𝔫𝔦 𝟙𝟚𝟛 𠮷野家 ﷺ
🙂👍🏽👨‍👩‍👧🇫🇷☃️ ♥ → ∑∫√∞ ≤≥ … – — “quotes” ‘single’ «guillemets» 「括弧」 © ™ №
def f(x):\treturn x**2 if x>=0 else -x // 3 {"key":[1,2.5e-3,null]} <a href="x">y</a> /usr/local/bin $HOME \\n \\u00e9
<|im_start|> <|im_end|> <|endoftext|> <repo_name> <|im_start <file_sep>x || << >> <| |> <|im_end|><|im_end|>
supercalifragilisticexpialidocious aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ababababab zzz QWERTYuiop McDonald iPhone15
I'm you've he'll we'd that's it'S 'tis rock'n'roll 'sup 'ſ 'reſ O'Neill l'été ''' '' 's's""".split()
GAPS = [" "] * 12 + ["", "", "  ", "   ", "\t", "\n", "\n\n", " \n", "\n ", "\r\n", "\r", " \t ", "\u00a0", "\u3000", "\u2009", "\u2028",
        "\u200b", "\u0085", "\u000b", "\u001c", "\ufeff", "\u0301", "\u00ad", " \n \n  ", "        ", "\u180e"]


def make_lines(count):
    draw = random.Random(20240817)
    fixed = ["", " ", "  ", "\n", "a", " a", "1", " 1", "  1", "a1b22c333", "12345678901", "\n\n\nx", "x \n", "x  \n  y", "''", "\u0000", "\u007f",
             "e\u0301", "\u0301", "\U0010ffff", "\u4e00\u4e01"]
    lines = fixed[:]
    while len(lines) < count:
        line = ""
        for _ in range(draw.randint(1, 14)):
            word = draw.choice(WORDS)
            if draw.random() < 0.1:
                word = "".join(draw.sample(word, len(word)))
            if draw.random() < 0.1:
                word = draw.choice([str.upper, str.title, str.swapcase])(word)
            if draw.random() < 0.1:
                word += str(draw.randint(0, 10**draw.randint(1, 9)))
            line += draw.choice(GAPS) + word
        lines.append(line[draw.randint(0, 1):])
    return lines


def make_tokenizer():
    reader = gguf.GGUFReader(LLM_DIR + "/SmolLM2-135M-Instruct.Q4_1.gguf")
    tokens, merges, kinds = (reader.fields["tokenizer.ggml." + key].contents() for key in ("tokens", "merges", "token_type"))
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def pieces(pre_tokenizer, line):
    return [line[begin:end] for _, (begin, end) in pre_tokenizer.pre_tokenize_str(line)]


def dump(folder, name, cases):
    rows = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
    (folder / name).write_text("[\n" + rows + "\n]\n", encoding="utf-8")


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    folder = HERE if count == 300 else pathlib.Path(".")
    lines = make_lines(count)
    tokenizer = make_tokenizer()
    dump(folder, "token_ids.json", [{"text": line, "ids": tokenizer.encode(line, add_special_tokens=False).ids} for line in lines])
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    kinds = {"gpt2": split(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
             "llama-bpe": split(LLAMA3), "qwen2": split(LLAMA3.replace("{1,3}", ""))}
    dump(folder, "pre_tokens.json",
         [{"text": line, **{name: pieces(kind, line) for name, kind in kinds.items()}} for line in lines[:count // 2]])


if __name__ == "__main__":
    main()
