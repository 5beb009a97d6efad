"""Tiny encoders as sentence-transformers' folders, and what it computes by them.

  HF_HUB_OFFLINE=1 python make.py [FOLDER]     # beside this script if not given

Needs sentence-transformers==6.2.0 torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 (in a virtual environment).
`mean` is a BERT as that version saves it: its tokenizer in tokenizer.json, a mean without the prompt's tokens, normalised.
`cls` is a DistilBERT as versions before 3 wrote it: a transformer in a folder of its own, vocab.txt, a key for each kind of
pooling. golden.json has the embeddings of some lines by weights in double, by the name of the prompt ("" for none).
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers as hf
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules.pooling import Pooling

FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
PIECES = """[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog ##s sat run ##ning query passage : , . ! e ##e on mat in rain
is what who ran ##k represent sentence""".split()
LINES = ["", "The cat sat on the mat.", "Dogs running in rain!", "é", "unknownword 猫",
         "the the the the the the the the the the the the the the the the", "Who ran, what ranks?"]


def draw(model):
    torch.manual_seed(20260728)
    for name, p in model.named_parameters():
        scale = 0.6 if "embeddings" in name and p.dim() == 2 else 0.3 if p.dim() == 2 else 0.2
        torch.nn.init.normal_(p, 1 if "LayerNorm.weight" in name or "layer_norm.weight" in name else 0, scale)
    return model


def tokenizer():
    return hf.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})


def write(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def new(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def golden(folder, prompts):
    model = SentenceTransformer(str(folder), device="cpu").double()
    write(folder / "golden.json", {
        prompt: {line: [round(float(x), 12) for x in vector]
                 for line, vector in zip(LINES, model.encode(LINES, prompt_name=prompt or None), strict=True)}
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


make_mean()
make_cls()
