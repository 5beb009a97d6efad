"""Attention, Transformer layers and language models on CPUs.

Functions take numpy's arrays, PyTorch's tensors on the CPU and other objects with DLPack or the
buffer protocol, without a copy, and return what they were given. attn.torch has the functions with
gradients.
"""

import numpy  # noqa: F401  before the extension, which looks it up in sys.modules

from attn._attn import (
    GeneratedText,
    LanguageModel,
    SentenceEncoder,
    get_num_threads,
    instruction_set,
    layer_norm,
    linear,
    log_softmax,
    rms_norm,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
    set_num_threads,
    softmax,
)
from attn.files import load
from attn.multihead_attention import MultiheadAttention

__version__ = "0.2.0"

__all__ = [
    "GeneratedText",
    "LanguageModel",
    "MultiheadAttention",
    "SentenceEncoder",
    "get_num_threads",
    "instruction_set",
    "layer_norm",
    "linear",
    "load",
    "log_softmax",
    "rms_norm",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "set_num_threads",
    "softmax",
]
