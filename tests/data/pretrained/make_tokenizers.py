# Needs tokenizers==0.23.3 (in a virtual environment): writes tokenizers/NAME/tokenizer.json with a small vocabulary for
# each supported pre-tokenizer, one of them with the configuration of Llama 3, and tokenizers/cases.json, the ids of
# lines.
#
#   python make_tokenizers.py
import json
import pathlib
import string

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ã", "©"), ("1", "2"), ("12", "3"), ("Ġ", "1")]
LINES = ["", "hello world", "he said: hello wor1d 1234 12", "caf\u00e9 cafe\u0301 \u212b A\u030a \uac00 \u1100\u1161 \u0344", "<s>hello</s> <tool>x",
         "e\u0301<s>\u0301e", "  two  spaces\n\n and\tlines \r\n", "I'll we'RE 'tis it'\u017f", "\u4e2d\u6587 \u0e17\u0e35\u0e48 \U0001f642\u200d",
         "\u0000\u007f~ x\u00ad", "12 123 1234 \u0661\u0662", "HELLO \u0130\u03a3\u212a \u01c5's it'S ''t !?'s hello"]


CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
CLIP_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("Ã", "©</w>"), ("'", "s</w>")]


def build(name, steps, normalizer=None, post=None, missing="", unk=None, ignore_merges=False, end="", merges=MERGES):
    letters = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in missing]
    tokens = letters + [c + end for c in letters if end] + [a + b for a, b in merges] + ([unk] if unk else [])
    t = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, unk_token=unk, ignore_merges=ignore_merges,
                             **({"end_of_word_suffix": end, "continuing_subword_prefix": ""} if end else {})))
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


def finish(name, t):
    """Of SentencePiece, with a token behind texts."""
    t.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", t.token_to_id("</s>"))])
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    t.save(str(folder / "tokenizer.json"), pretty=False)
    return {"folder": name, "cases": [{"text": line, "ids": t.encode(line).ids} for line in LINES]}


def siglip():
    """Unigram without punctuation, in lower case, as SigLIP's tokenizer prepares texts."""
    words = ["\u2581hello", "\u2581he", "ll", "\u2581two", "\u2581spaces", "\u2581", "s", "t", "e", "l", "o", "i", "\u0307", "\u00e9", "1", "2", "12"]
    t = Tokenizer(models.Unigram([("</s>", 0.0), ("<unk>", 0.0)] + [(w, -1.5 - 0.25 * i) for i, w in enumerate(words)], unk_id=1))
    signs = "".join("\\" + c for c in string.punctuation)
    t.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(f"[{signs}]"), ""),
                                         normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.decoder = decoders.Metaspace(prepend_scheme="always", split=True)
    return finish("siglip", t)


def siglip2():
    """Gemma's tokenizer in lower case."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u2581", "w")]
    tokens = ["<pad>", "</s>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + sorted({c for pair in merges for c in "".join(pair)})
    tokens += [a + b for a, b in merges]
    t = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "\u2581")])
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return finish("siglip2", t)


def main():
    byte_level = lambda cuts: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cuts)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])
    begin = lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", t.token_to_id("<s>"))])])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    cases = [build("gpt2", byte_level(True), post=lambda t: processors.ByteLevel(trim_offsets=True)),
             build("smollm", digits, missing="~\u0100", unk="<unk>"),
             build("llama3", split(LLAMA3), post=begin, ignore_merges=True),
             build("qwen2", split(QWEN2), normalizer=normalizers.NFC()),
             build("clip", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True), byte_level(True)]),
                   normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
                   post=lambda t: processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>"))),
                   missing="~", unk="<unk>", end="</w>", merges=CLIP_MERGES),
             siglip(), siglip2()]
    (FOLDER / "cases.json").write_text(json.dumps(cases, separators=(",", ":")).replace('{"folder"', '\n{"folder"') + "\n")


if __name__ == "__main__":
    main()
