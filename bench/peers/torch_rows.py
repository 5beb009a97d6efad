"""PyTorch's side: eager calls without gradients, as a user writes them."""

import torch
import torch.nn.functional as F

import minilm
from common import Attention, BatchedGemm, Elements, EncoderLayer, Gemm, MiniLm, MultiHead, Softmax
from rival import Way, serve


def multi_head_state(inputs, prefix=""):
    """nn.MultiheadAttention's names."""
    return {
        prefix + "in_proj_weight": inputs["in_weight"],
        prefix + "in_proj_bias": inputs["in_bias"],
        prefix + "out_proj.weight": inputs["out_weight"],
        prefix + "out_proj.bias": inputs["out_bias"],
    }


def sentence_transformer(operation, threads):
    # Of this row alone: where it is not installed, the others have their numbers.
    from sentence_transformers import SentenceTransformer

    minilm.let_tokenizers_use(threads)
    model = SentenceTransformer(f"{operation.folder}/{minilm.SENTENCE_TRANSFORMER}", device="cpu")
    text = operation.text()
    return lambda: model.encode(
        text, batch_size=minilm.BATCH_SIZE, convert_to_tensor=True, show_progress_bar=False
    )


def eager(operation, inputs, threads):
    torch.set_num_threads(threads)
    t = {name: torch.from_numpy(x) for name, x in inputs.items()}
    match operation:
        case Gemm(packed=True):
            weight = t["b"].t().contiguous()
            call = lambda: F.linear(t["a"], weight)
        case Gemm() | BatchedGemm():
            call = lambda: t["a"] @ t["b"]
        case Elements(kind="gelu"):
            call = lambda: F.gelu(t["x"])
        case Elements(kind="silu"):
            call = lambda: F.silu(t["x"])
        case Elements(kind="layer_norm"):
            call = lambda: F.layer_norm(t["x"], (operation.columns,), eps=operation.eps)
        case Attention():
            options = {"is_causal": operation.causal, "enable_gqa": operation.group > 1}
            call = lambda: F.scaled_dot_product_attention(t["q"], t["k"], t["v"], **options)
        case Softmax():
            call = lambda: torch.softmax(t["x"], -1)
        case MultiHead():
            module = torch.nn.MultiheadAttention(operation.width, operation.heads, batch_first=True).eval()
            module.load_state_dict(multi_head_state(t))
            call = lambda: module(t["x"], t["x"], t["x"], need_weights=False)[0]
        case EncoderLayer():
            options = {"activation": "gelu", "layer_norm_eps": operation.eps, "batch_first": True}
            shape = operation.width, operation.heads, operation.hidden
            module = torch.nn.TransformerEncoderLayer(*shape, **options).eval()
            own = {name.replace("_", "."): x for name, x in t.items() if name.startswith(("linear", "norm"))}
            module.load_state_dict(multi_head_state(t, "self_attn.") | own)
            call = lambda: module(t["x"])
        case MiniLm():
            call = sentence_transformer(operation, threads)
    return Way(call, lambda output: output.numpy())


with torch.inference_mode():
    serve(torch.__version__, eager)
