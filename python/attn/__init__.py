"""Attention, Transformer layers and language models on CPUs."""

from attn._attn import (
    get_num_threads,
    instruction_set,
    layer_norm,
    linear,
    log_softmax,
    rms_norm,
    scaled_dot_product_attention,
    set_num_threads,
    softmax,
)

__all__ = [
    "get_num_threads",
    "instruction_set",
    "layer_norm",
    "linear",
    "log_softmax",
    "rms_norm",
    "scaled_dot_product_attention",
    "set_num_threads",
    "softmax",
]
