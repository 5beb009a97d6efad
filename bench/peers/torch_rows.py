"""PyTorch's side: eager calls without gradients, as a user writes them."""

import torch
import torch.nn.functional as F

from common import Attention, Gemm, MultiHead, Softmax
from rival import Way, serve


def eager(operation, inputs, threads):
    torch.set_num_threads(threads)
    t = {name: torch.from_numpy(x) for name, x in inputs.items()}
    match operation:
        case Gemm(packed=True):
            weight = t["b"].t().contiguous()
            call = lambda: F.linear(t["a"], weight)
        case Gemm():
            call = lambda: t["a"] @ t["b"]
        case Attention():
            options = {"is_causal": operation.causal, "enable_gqa": operation.group > 1}
            call = lambda: F.scaled_dot_product_attention(t["q"], t["k"], t["v"], **options)
        case Softmax():
            call = lambda: torch.softmax(t["x"], -1)
        case MultiHead():
            module = torch.nn.MultiheadAttention(operation.width, operation.heads, batch_first=True).eval()
            names = {
                "in_proj_weight": "in_weight",
                "in_proj_bias": "in_bias",
                "out_proj.weight": "out_weight",
                "out_proj.bias": "out_bias",
            }
            module.load_state_dict({theirs: t[ours] for theirs, ours in names.items()})
            call = lambda: module(t["x"], t["x"], t["x"], need_weights=False)[0]
    return Way(call, lambda output: output.numpy())


with torch.inference_mode():
    serve(torch.__version__, eager)
