# Needs tokenizers==0.23.3 (in a virtual environment): writes tokenizers/NAME/tokenizer.json with a small vocabulary for
# each supported pre-tokenizer, one of them with the configuration of Llama 3, and tokenizers/cases.json, the ids of
# lines.
#
#   python make_tokenizers.py
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ã", "©"), ("1", "2"), ("12", "3"), ("Ġ", "1")]
LINES = ["", "hello world", "he said: hello wor1d 1234 12", "caf\u00e9 cafe\u0301 \u212b A\u030a \uac00 \u1100\u1161 \u0344", "<s>hello</s> <tool>x",
         "e\u0301<s>\u0301e", "  two  spaces\n\n and\tlines \r\n", "I'll we'RE 'tis it'\u017f", "\u4e2d\u6587 \u0e17\u0e35\u0e48 \U0001f642\u200d",
         "\u0000\u007f~ x\u00ad", "12 123 1234 \u0661\u0662"]


def build(name, steps, normalizer=None, post=None, missing="", unk=None, ignore_merges=False):
    letters = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in missing]
    tokens = letters + [a + b for a, b in MERGES] + ([unk] if unk else [])
    t = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=MERGES, unk_token=unk, ignore_merges=ignore_merges))
    t.pre_tokenizer = steps
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<s>", special=True, normalized=False), AddedToken("</s>", special=True, normalized=False)])
    t.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    if post:
        t.post_processor = post(t)
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    t.save(str(folder / "tokenizer.json"), pretty=False)
    return {"folder": name, "cases": [{"text": line, "ids": t.encode(line).ids} for line in LINES]}


def main():
    byte_level = lambda cuts: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cuts)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])
    begin = lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", t.token_to_id("<s>"))])])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    cases = [build("gpt2", byte_level(True), post=lambda t: processors.ByteLevel(trim_offsets=True)),
             build("smollm", digits, missing="~\u0100", unk="<unk>"),
             build("llama3", split(LLAMA3), post=begin, ignore_merges=True),
             build("qwen2", split(QWEN2), normalizer=normalizers.NFC())]
    (FOLDER / "cases.json").write_text(json.dumps(cases, separators=(",", ":")).replace('{"folder"', '\n{"folder"') + "\n")


if __name__ == "__main__":
    main()
