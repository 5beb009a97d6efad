# Needs torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 (in a virtual environment): writes
# attention.json, the attention weights of every head of all-MiniLM-L6-v2 for two sentences, by transformers.
#
#   HF_HUB_OFFLINE=1 python make_attention.py            with the model from examples/fetch_model.sh
#
# The format is that of attention_map's --json, a list of {"text", "tokens", "weights": [layer][head][query][key]}.
# Weights are computed in double precision and stored with eight decimals, so that the reference's own error is far
# below the tolerance of 1e-5; single precision must agree.
import json
import pathlib

import torch

from make_embeddings import make_model
from make_token_ids import make_tokenizer

HERE = pathlib.Path(__file__).parent
SENTENCES = ["The cat sat because it was tired.", "Unaffable naïveté?"]


def attention(model, ids):
    """The weights (layers, heads, queries, keys) for one sentence."""
    with torch.inference_mode():
        return torch.cat(model(input_ids=torch.tensor([ids]), output_attentions=True).attentions)


def main():
    tokenizer = make_tokenizer()
    single, double = make_model(), make_model().double()
    for model in (single, double):
        model.set_attn_implementation("eager")  # fused implementations do not return weights
    cases = []
    for text in SENTENCES:
        encoding = tokenizer.encode(text)
        weights = attention(double, encoding.ids)
        difference = (attention(single, encoding.ids).double() - weights).abs().max().item()
        print(f"{encoding.tokens}; float32 differs by at most {difference:.2e}")
        assert difference < 2e-6
        cases.append({"text": text, "tokens": encoding.tokens, "weights": weights.numpy().round(8).tolist()})
    rows = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    (HERE / "attention.json").write_text("[\n" + rows + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
