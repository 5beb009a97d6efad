"""Writes what the row minilm needs into a folder: `python minilm_files.py FOLDER SENTENCES`.

The text, and the model of $ATTN_MODEL_DIR in the formats of the other libraries.
"""

import os
import random
import sys
from pathlib import Path

from common import MiniLm
from minilm import EXPORTED, OPTIMIZED, QUANTIZED, SENTENCE_TRANSFORMER, TOKENIZER

MAX_TOKENS = 256


def write_text(operation):
    """Writes lines of 5 to 60 words of the vocabulary, the same in every run."""
    entries = (
        Path(os.environ["ATTN_MODEL_DIR"], "vocab.txt").read_text(encoding="utf-8").splitlines()
    )
    words = [entry for entry in entries if entry.isascii() and entry.isalpha() and len(entry) > 3]
    source = random.Random(1)
    lines = (
        " ".join(source.choices(words, k=source.randint(5, 60))) for _ in range(operation.sentences)
    )
    operation.text_file.write_text("".join(line + "\n" for line in lines))


def write_sentence_transformer(folder, model, tokenizer):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import PreTrainedTokenizerFast

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=MAX_TOKENS, **special
    ).save_pretrained(folder)
    modules = [Transformer(folder, max_seq_length=MAX_TOKENS), Pooling(384, "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(folder)


def write_graphs(folder, model):
    """Writes graphs from token ids and mask to embeddings."""
    import onnx
    import torch
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers import optimizer

    class Embed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)

    # Attention as separate operators, exported by tracing: the optimizer recognises no other form.
    model.set_attn_implementation("eager")
    ids = torch.arange(100, 121).reshape(3, 7)
    mask = (torch.arange(7) < torch.tensor([[7], [5], [2]])).long()
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(
        Embed().eval(),
        (ids, mask),
        folder / EXPORTED,
        input_names=names,
        output_names=["embeddings"],
        dynamic_axes={name: {0: "batch", 1: "seq"} for name in names},
        opset_version=17,
        dynamo=False,
    )
    fused = optimizer.optimize_model(str(folder / EXPORTED), "bert", num_heads=12, hidden_size=384)
    fused.save_model_to_file(str(folder / OPTIMIZED))
    # The outputs of the optimizer's operators have no inferred type.
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(folder / OPTIMIZED, folder / QUANTIZED, extra_options=options)


def main():
    folder = Path(sys.argv[1])
    write_text(MiniLm(str(folder), int(sys.argv[2])))
    # The tests' references were made with the same model and tokenizer.
    sys.path.append(str(Path(__file__).parents[2] / "tests/data/minilm"))
    from make_embeddings import make_model
    from make_token_ids import make_tokenizer

    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / TOKENIZER))
    write_sentence_transformer(str(folder / SENTENCE_TRANSFORMER), make_model(), tokenizer)
    write_graphs(folder, make_model())


main()
