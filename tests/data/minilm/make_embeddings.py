# Needs torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 (in a virtual environment): writes
# embeddings.json, the embeddings of the lines of sentences.txt by all-MiniLM-L6-v2 in PyTorch.
#
#   HF_HUB_OFFLINE=1 python make_embeddings.py            with the model from examples/fetch_model.sh
#
# As in sentence-transformers: the mean of the last hidden states over all tokens, including [CLS] and [SEP], divided by
# its L2 norm. Computed twice: in double precision, one sentence at a time, which is stored (9 significant digits, so
# that the reference's own error is far below the tolerance of 1e-5), and in single precision as one padded batch, which
# must agree.
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

from make_token_ids import make_tokenizer, model_dir

HERE = pathlib.Path(__file__).parent


def make_model():
    """The model with the settings of its config.json; every tensor must be used, and none may be missing."""
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        hidden_act="gelu",
        max_position_embeddings=512,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
    )
    model = BertModel(config, add_pooling_layer=True).eval()
    weights = load_file(model_dir() / "model.safetensors")
    weights.pop("embeddings.position_ids")  # 0, 1, 2, ..: not a weight
    model.load_state_dict(weights, strict=True)
    return model


def embed(model, batch):
    """Embeddings (len(batch), 384) of lists of token ids, padded to the longest of them."""
    width = max(map(len, batch))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)


def main():
    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    batch = [encoding.ids for encoding in make_tokenizer().encode_batch(sentences)]
    single = embed(make_model(), batch)
    model = make_model().double()
    double = torch.cat([embed(model, [ids]) for ids in batch])
    difference = (single.double() - double).abs().max().item()
    print(f"{len(batch)} sentences of {list(map(len, batch))} tokens; float32 differs by at most {difference:.2e}")
    assert difference < 2e-6
    cases = [
        {"text": text, "embedding": [float(f"{x:.9g}") for x in row.tolist()]}
        for text, row in zip(sentences, double)
    ]
    rows = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    (HERE / "embeddings.json").write_text("[\n" + rows + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
