# Needs sentencepiece==0.2.3 gguf==0.19.0 tokenizers==0.23.3 (in a virtual environment): trains small vocabularies on a
# few lines in many scripts. Writes them in the form of GGUF files (NAME.gguf, without tensors) and of tokenizer.json
# (NAME/tokenizer.json), and cases.json: lines and, by the tokenizer's name, rows of a line's number, the package's ids,
# and the decoded text if it differs.
#
#   python make.py [LINES]          100 lines if not given
#
# With more lines, such as 5000, writes cases.json to the current folder; ATTN_TOKEN_IDS_DIR names that folder for the
# tests.
import io
import json
import pathlib
import random
import sys

import gguf
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "smollm2"))
from make_token_ids import GAPS, WORDS, make_lines  # noqa: E402

SPACE = "\u2581"
CONTROL = ["<start_of_turn>", "<end_of_turn>"]


def train(**options):
    """A SentencePiece model; characters that are rare in the lines have no token."""
    draw = random.Random(7)
    latin = [word for word in WORDS if word.isascii() and word.isprintable() and "<" not in word]
    lines = [" ".join(draw.choice(latin if draw.random() < 0.9 else WORDS) for _ in range(12)) for _ in range(2000)]
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, num_threads=1, minloglevel=2, allow_whitespace_only_pieces=True, input_sentence_size=0,
        control_symbols=CONTROL, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def kind_of(model, i):
    return (gguf.TokenType.UNKNOWN if model.is_unknown(i) else gguf.TokenType.CONTROL if model.is_control(i) else
            gguf.TokenType.BYTE if model.is_byte(i) else gguf.TokenType.NORMAL)


def write_gguf(name, model, user_defined, has_prefix):
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", "llama")
    pieces = [model.id_to_piece(i) for i in range(len(model))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores([model.get_score(i) for i in range(len(model))])
    writer.add_token_types([gguf.TokenType.USER_DEFINED if p in user_defined else kind_of(model, i) for i, p in enumerate(pieces)])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.add_add_space_prefix(has_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def merges_of(model):
    """The pairs that form each token, in the order of its score."""
    ids = {model.id_to_piece(i): i for i in range(len(model)) if kind_of(model, i) == gguf.TokenType.NORMAL}
    pairs = [(-model.get_score(i), len(a), (a, b)) for p, i in ids.items() for k in range(1, len(p))
             for a, b in [(p[:k], p[k:])] if a in ids and b in ids]
    return [pair for *_, pair in sorted(pairs)]


def finish(tokenizer, model, name, user_defined=(), bos="<s>"):
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ["<unk>", bos, "</s>", *CONTROL]])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in user_defined])
    tokenizer.post_processor = processors.TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, model.bos_id())])
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    return tokenizer


def bpe(model, normalizer, pre_tokenizer, decoder, name, user_defined=()):
    vocab = {model.id_to_piece(i): i for i in range(len(model))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges_of(model), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    return finish(tokenizer, model, name, user_defined)


def unigram(model, byte_fallback, pre_tokenizer, name):
    vocab = [(model.id_to_piece(i), model.get_score(i)) for i in range(len(model))]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=model.unk_id(), byte_fallback=byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizer
    spaces = decoders.Metaspace(prepend_scheme=pre_tokenizer.prepend_scheme, split=pre_tokenizer.split)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if byte_fallback else spaces
    return finish(tokenizer, model, name)


def with_specials(lines):
    """Lines that contain special tokens, mostly without a space beside them."""
    draw = random.Random(11)
    marks = ["<s>", "</s>", "<unk>", *CONTROL, "<tool>", "<start_of_turn", "<0x0A>", " <s> ", "\n\n", "  "]
    return ["".join(draw.choice(lines) + draw.choice(marks) for _ in range(draw.randint(1, 3))) for _ in range(len(lines) // 3)]


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    folder = HERE if count == 100 else pathlib.Path(".")
    lines = make_lines(count) + [SPACE, "a" + SPACE + "b", " " + SPACE]
    plain = [line for line in lines if not any(t in line for t in ("<s>", "</s>", "<unk>", *CONTROL))]
    marked = with_specials(lines)
    every = lines + marked
    cases = {}

    def add(name, encode, decode, texts):
        rows = cases.setdefault(name, [])
        for text in texts:
            ids = encode(text)
            decoded = decode(ids)
            rows.append([every.index(text), ids] + ([] if decoded == text else [decoded]))

    def add_tokenizers(name, tokenizer, texts, bos=True):
        add(name, lambda t: tokenizer.encode(t, add_special_tokens=bos).ids,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=True), texts)

    llama = train(model_type="bpe", vocab_size=700, character_coverage=0.98, byte_fallback=True, add_dummy_prefix=True)
    write_gguf("llama", llama, [], True)
    add("llama.gguf", llama.encode, llama.decode, [t for t in plain if "\u0000" not in t])
    user_defined = ["<tool>", "\n\n", SPACE * 2, SPACE * 4]
    gemma = train(model_type="bpe", vocab_size=700, character_coverage=0.98, byte_fallback=True, add_dummy_prefix=False,
                  user_defined_symbols=user_defined)
    write_gguf("gemma", gemma, user_defined, False)
    add("gemma.gguf", gemma.encode, gemma.decode, [t for t in plain if "\u0000" not in t])

    replace = normalizers.Replace(" ", SPACE)
    to_text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    prefixed = bpe(llama, normalizers.Sequence([normalizers.Prepend(SPACE), replace]), None,
                   decoders.Sequence(to_text + [decoders.Strip(" ", 1, 0)]), "llama")
    add_tokenizers("llama", prefixed, every)
    # A GGUF file encodes spaces in the same way.
    add_tokenizers("llama.gguf", prefixed, marked, bos=False)
    first = bpe(llama, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
                decoders.Sequence(to_text + [decoders.Strip(" ", 1, 0)]), "llama_first")
    add_tokenizers("llama_first", first, every)
    add_tokenizers("gemma", bpe(gemma, replace, pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence(to_text),
                                "gemma", ["<tool>", "\n\n"]), every)

    words = train(model_type="unigram", vocab_size=270, character_coverage=0.98, byte_fallback=False)
    add_tokenizers("unigram", unigram(words, False, pre_tokenizers.Metaspace(prepend_scheme="always", split=True), "unigram"),
                   every)
    words = train(model_type="unigram", vocab_size=520, character_coverage=0.98, byte_fallback=True)
    add_tokenizers("unigram_bytes", unigram(words, True, pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
                                            "unigram_bytes"), every)
    dump = lambda row: json.dumps(row, ensure_ascii=True, separators=(",", ":"))
    text = ",\n".join(f'"{name}":[\n' + ",\n".join(map(dump, rows)) + "\n]" for name, rows in ({"lines": every} | cases).items())
    (folder / "cases.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
