"""Writes folders of tiny encoders by sentence-transformers, and its results for them.

  HF_HUB_OFFLINE=1 python make.py [FOLDER]     # beside this script if not given

Needs sentence-transformers==6.2.0 torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 (in a virtual environment).
`mean` is a BERT in the form of this version: tokenizer.json, and a normalised mean without the tokens of the prompt.
`cls` is a DistilBERT in the form of versions before 3: the transformer in a folder of its own, vocab.txt, and a key for
each kind of pooling. `multilingual` is a BERT with the Unigram tokenizer of XLM-RoBERTa, like
paraphrase-multilingual-MiniLM; `roberta` a RoBERTa with byte-level BPE; `modernbert` a ModernBERT with byte-level BPE
and the tokens [CLS] and [SEP]; `embedding_gemma` a Gemma 3 without a causal mask, with Gemma's BPE and dense layers
after the pooling; `nomic_bert` a NomicBERT with the keys of older files; `mpnet` an MPNet, whose WordPiece has
RoBERTa's special tokens. golden.json has the embeddings of some lines, computed in double, by the name of the prompt
("" for none).
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers as hf
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules.pooling import Pooling
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
PIECES = """[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog ##s sat run ##ning query passage : , . ! e ##e on mat in rain
is what who ran ##k represent sentence""".split()
PRECOMPILED = pathlib.Path(__file__).parents[1] / "pretrained/precompiled"
MULTILINGUAL = ["", "hello world", "\uff28\uff45\uff4c\uff4c\uff4f  \u4e2d\u6587, \ufb03 caf\u00e9 \u65e5!", "the <mask> world", "offer\u2122 12 \u2167\u20ac",
                "hello world the offer " * 4, "\u30ac\uac00 world\n"]
ROBERTA = ["", "hello world", "he  said: hello", "caf\u00e9 \u4e2d\u6587 \U0001f642", "the <mask> we'll", "hello 123 " * 9, " world\n"]
MODERNBERT = ["", "hello world", "he  said: hello", "cafe\u0301 \u4e2d\u6587 \U0001f642", "the  [MASK] we'll", "hello 123 " * 9, " world\n"]
MPNET = ["", "The cat sat on the mat.", "Dogs <mask>running", "<unk>[UNK] [MASK] </s>the", "unknownword \u732b", "the " * 20, "Who ran, what ranks?"]
LINES = ["", "The cat sat on the mat.", "Dogs running in rain!", "é", "unknownword 猫",
         "the the the the the the the the the the the the the the the the", "Who ran, what ranks?"]


def draw(model):
    torch.manual_seed(20260728)
    for name, p in model.named_parameters():
        scale = 0.6 if "embeddings" in name and p.dim() == 2 else 0.3 if p.dim() == 2 else 0.2
        is_norm = name.endswith(("LayerNorm.weight", "norm.weight")) and model.config.model_type != "gemma3_text"
        torch.nn.init.normal_(p, 1 if is_norm else 0, scale)
    return model


def tokenizer():
    return hf.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})


def write(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def new(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def golden(folder, prompts, lines=LINES):
    model = SentenceTransformer(str(folder), device="cpu").double()
    write(folder / "golden.json", {
        prompt: {line: [round(float(x), 12) for x in vector]
                 for line, vector in zip(lines, model.encode(lines, prompt_name=prompt or None), strict=True)}
        for prompt in prompts})


def make_mean():
    folder, base = FOLDER / "mean", FOLDER / "base"
    new(folder)
    config = hf.BertConfig(vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                           intermediate_size=40, max_position_embeddings=24)
    draw(hf.BertModel(config)).save_pretrained(base)
    tokenizer().save_pretrained(base)
    modules = [Transformer(str(base), max_seq_length=14), Pooling(32, "mean", include_prompt=False), Normalize()]
    prompts = {"query": "query: ", "long": "represent the sentence running in the rain: "}
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder), create_model_card=False)
    shutil.rmtree(base)
    golden(folder, ["", "query", "long"])


def make_cls():
    folder = FOLDER / "cls"
    new(folder)
    transformer = folder / "0_Transformer"
    config = hf.DistilBertConfig(vocab_size=len(PIECES) + 1, dim=16, n_layers=2, n_heads=4, hidden_dim=24,
                                 max_position_embeddings=20)
    draw(hf.DistilBertModel(config)).save_pretrained(transformer)
    (transformer / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    write(transformer / "tokenizer_config.json", {"do_lower_case": True, "tokenizer_class": "BertTokenizer",
                                                  "model_max_length": 512})
    write(transformer / "sentence_bert_config.json", {"max_seq_length": 18, "do_lower_case": False})
    kind = "sentence_transformers.models."
    write(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": kind + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": kind + "Pooling"}])
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling/config.json", {
        "word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False})
    write(folder / "config_sentence_transformers.json", {
        "__version__": {"sentence_transformers": "2.2.2"}, "prompts": {"query": "query: ", "passage": "passage: "},
        "default_prompt_name": "passage"})
    golden(folder, ["", "query", "passage"])


def save(folder, model, tokenizer, modules, prompts, max_seq_length):
    base = FOLDER / "base"
    new(folder)
    draw(model).save_pretrained(base)
    tokenizer.save_pretrained(base)
    modules = [Transformer(str(base), max_seq_length=max_seq_length), *modules]
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder), create_model_card=False)
    shutil.rmtree(base)


def fast_tokenizer(tokenizer):
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", unk_token="<unk>",
        pad_token="<pad>", mask_token=AddedToken("<mask>", lstrip=True, special=True), model_max_length=512)


def make_multilingual():
    folder = FOLDER / "multilingual"
    tokenizer = Tokenizer.from_file(str(PRECOMPILED / "xlm_roberta/tokenizer.json"))
    config = hf.BertConfig(vocab_size=tokenizer.get_vocab_size() + 3, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=24, max_position_embeddings=24, pad_token_id=1)
    save(folder, hf.BertModel(config), fast_tokenizer(tokenizer), [Pooling(16, "mean", include_prompt=False)],
         {"query": "the world: "}, 12)
    golden(folder, ["", "query"], MULTILINGUAL)


def make_roberta():
    folder = FOLDER / "roberta"
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w"), ("\u00c3", "\u00a9"), ("1", "2"), ("\u0120", "1")]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls_token=("<s>", 0), add_prefix_space=False)
    # 2 of the 22 positions are for padding: lines are truncated at 20 tokens
    config = hf.RobertaConfig(vocab_size=len(pieces) + 1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                              intermediate_size=24, max_position_embeddings=22, type_vocab_size=1)
    save(folder, hf.RobertaModel(config), fast_tokenizer(tokenizer), [Pooling(16, "cls"), Normalize()], {"query": "hello: "}, 20)
    (folder / "sentence_bert_config.json").write_text("{}\n")
    path = folder / "tokenizer_config.json"
    write(path, json.loads(path.read_text()) | {"model_max_length": 20})
    golden(folder, ["", "query"], ROBERTA)


def template(before, behind, tokenizer):
    return processors.TemplateProcessing(single=f"{before} $A {behind}", pair=f"{before} $A {behind} $B {behind}",
                                         special_tokens=[(t, tokenizer.token_to_id(t)) for t in (before, behind)])


def make_modernbert():
    folder = FOLDER / "modernbert"
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w"), ("\u00c3", "\u00a9"), ("1", "2"), ("\u0120", "1")]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("  ", normalized=True)])
    tokenizer.post_processor = template("[CLS]", "[SEP]", tokenizer)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                      pad_token="[PAD]", mask_token="[MASK]", model_max_length=512)
    cls, sep, pad = (tokenizer.token_to_id(t) for t in ("[CLS]", "[SEP]", "[PAD]"))
    config = hf.ModernBertConfig(vocab_size=tokenizer.get_vocab_size() + 2, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                                 intermediate_size=24, max_position_embeddings=40, local_attention=6, pad_token_id=pad, bos_token_id=cls,
                                 cls_token_id=cls, eos_token_id=sep, sep_token_id=sep)
    save(folder, hf.ModernBertModel(config), fast, [Pooling(16, "mean"), Normalize()], {"query": "hello: "}, 30)
    golden(folder, ["", "query"], MODERNBERT)


def make_embedding_gemma():
    folder = FOLDER / "embedding_gemma"
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u2581", "w"), ("w", "o"), ("1", "2")]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pieces = [*special, *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *"abcdefghijklmnopqrstuvwxyz123:", *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges, unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = template("<bos>", "<eos>", tokenizer)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>",
                                      pad_token="<pad>", mask_token="<mask>", model_max_length=512, padding_side="right")
    config = hf.Gemma3TextConfig(vocab_size=len(pieces) + 2, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2, head_dim=8, intermediate_size=24, max_position_embeddings=40, sliding_window=6,
                                 layer_types=["sliding_attention", "full_attention"], use_bidirectional_attention=True)
    torch.manual_seed(3)
    dense = [Dense(16, 24, bias=False, activation_function=torch.nn.Identity()), Dense(24, 8)]
    save(folder, hf.Gemma3TextModel(config), fast, [Pooling(16, "mean"), *dense, Normalize()], {"query": "hello: "}, 30)
    golden(folder, ["", "query"], ROBERTA)


def make_nomic_bert():
    folder = FOLDER / "nomic_bert"
    config = hf.NomicBertConfig(vocab_size=len(PIECES) + 1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                intermediate_size=24, max_position_embeddings=24)
    save(folder, hf.NomicBertModel(config), tokenizer(), [Pooling(16, "mean")], {"query": "query: "}, 18)
    golden(folder, ["", "query"])
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    settings["n_positions"] = settings.pop("max_position_embeddings")
    settings["rotary_emb_base"] = settings.pop("rope_parameters")["rope_theta"]
    write(path, settings)


def make_mpnet():
    folder = FOLDER / "mpnet"
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *PIECES, "<mask>"]
    mpnet = hf.MPNetTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})
    config = hf.MPNetConfig(vocab_size=len(pieces), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=24, max_position_embeddings=24)
    save(folder, hf.MPNetModel(config), mpnet, [Pooling(16, "mean"), Normalize()], {"query": "query: "}, 18)
    golden(folder, ["", "query"], MPNET)


def main():
    make_mean()
    make_cls()
    make_multilingual()
    make_roberta()
    make_modernbert()
    make_embedding_gemma()
    make_nomic_bert()
    make_mpnet()


if __name__ == "__main__":
    main()
