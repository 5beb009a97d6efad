"""Applies transformers' processors to random logits: which tokens may be drawn, and with which probability.

  python make.py     # writes cases.json beside this script; needs torch and transformers
"""
import json
import pathlib

import torch
from transformers.generation import logits_process as p


def main():
    torch.manual_seed(1)
    cases = []
    for n in range(24):
        logits = (torch.randn(1, 16) * (0.5 + n % 4)).double()
        ids = torch.randint(0, 4, (1, 12))
        temperature, top_k, top_p, min_p = 0.5 + 0.25 * (n % 5), 4 + n % 12, 0.5 + 0.02 * n, 0.01 * (n % 7)
        typical, ngram = 0.3 + 0.025 * n, 1 + n % 4
        x = p.NoRepeatNGramLogitsProcessor(ngram)(ids, logits.clone())
        for warper in (p.TemperatureLogitsWarper(temperature), p.TopKLogitsWarper(top_k), p.TopPLogitsWarper(top_p),
                       p.MinPLogitsWarper(min_p), p.TypicalLogitsWarper(typical)):
            x = warper(ids, x)
        cases.append({"logits": logits[0].tolist(), "ids": ids[0].tolist(), "temperature": temperature, "top_k": top_k,
                      "top_p": top_p, "min_p": min_p, "typical_p": typical, "no_repeat_ngram": ngram,
                      "probabilities": x.softmax(-1)[0].tolist()})
    path = pathlib.Path(__file__).with_name("cases.json")
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
