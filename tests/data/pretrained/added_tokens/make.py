# Needs tokenizers==0.23.3: writes tokenizer.json, whose tokens are bytes and added tokens that include surrounding
# white space or match whole words only, and cases.json, lines with their ids.
#
#   python make.py
import json
import pathlib
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = pathlib.Path(__file__).parent
WORDS = ["<l>", "<r>", "<b>", "<w>", "word", "<all>", "x", "é", "7", "_", ".", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2028",
         "\u0301", "Ⓐ", "½", "Ⅷ", "‿", "\u200d", "日", "١", "-", "<l", "wordy"]


def main():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True),
                                  AddedToken("<b>", lstrip=True, rstrip=True), AddedToken("<w>", single_word=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True),
                          AddedToken("<all>", single_word=True, lstrip=True, rstrip=True)])
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
    draw = random.Random(31)
    lines = ["".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(400)]
    cases = [{"text": line, "ids": tokenizer.encode(line).ids} for line in lines]
    rows = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
    (HERE / "cases.json").write_text("[\n" + rows + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
