"""Rows of attn's Python package, called on numpy's arrays as a user writes it."""

import os

import attn
import numpy as np

import minilm
from common import (
    Attention,
    AttentionTrain,
    Elements,
    Gemm,
    MiniLm,
    MultiHead,
    Softmax,
    multi_head_state,
)
from peer import Unsupported, Way, need_element, serve


def sentence_encoder(operation):
    precision = {
        "float32": {},
        "bfloat16": {"weights": "bf16", "activations": "bf16"},
        "int8": {"weights": "int8", "activations": "int8"},
    }
    encoder = attn.SentenceEncoder(os.environ["ATTN_MODEL_DIR"], **precision[operation.element])
    text = operation.text()
    return lambda: encoder.encode(text, normalize=True, batch_size=minilm.BATCH_SIZE)


def attention_gradients(operation, q, k, v, d_out):
    mask = {"is_causal": operation.causal}
    out, lse = attn.scaled_dot_product_attention(q, k, v, return_lse=True, **mask)
    return attn.scaled_dot_product_attention_backward(d_out, q, k, v, out, lse, **mask)[:3]


def package(operation, inputs, threads):
    attn.set_num_threads(threads)
    if isinstance(operation, MiniLm):
        return Way(sentence_encoder(operation), lambda embeddings: embeddings)
    need_element(operation, "float32")  # numpy has no bfloat16
    x = inputs.get("x")
    match operation:
        case Gemm(packed=True):
            weight = np.ascontiguousarray(inputs["b"].T)
            call = lambda: attn.linear(inputs["a"], weight)
        case Elements(kind="layer_norm"):
            call = lambda: attn.layer_norm(x, operation.columns, eps=operation.eps)
        case AttentionTrain():
            return Way(lambda: attention_gradients(operation, **inputs), np.stack)
        case Attention():
            q, k, v = inputs["q"], inputs["k"], inputs["v"]
            options = {"is_causal": operation.causal, "enable_gqa": operation.group > 1}
            call = lambda: attn.scaled_dot_product_attention(q, k, v, **options)
        case Softmax():
            call = lambda: attn.softmax(x, -1)
        case MultiHead():
            module = attn.MultiheadAttention(operation.width, operation.heads, batch_first=True)
            module.load_state_dict(multi_head_state(inputs))
            call = lambda: module(x, x, x, need_weights=False)[0]
        case _:
            raise Unsupported(f"no {type(operation).__name__} in the package")
    return Way(call, lambda output: output)


serve(attn.__version__, package, trains=True)
