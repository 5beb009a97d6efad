"""Attention with gradients for PyTorch, in a model's training too.

    import attn.torch
    y = attn.torch.scaled_dot_product_attention(q, k, v, is_causal=True)

    with attn.torch.replace_sdpa():  # in torch.nn.functional, for every module
        model(x).sum().backward()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from attn import _attn

__all__ = ["replace_sdpa", "scaled_dot_product_attention"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
    key_lengths: Tensor | None = None,
    offset: int | Literal["top_left", "bottom_right"] = "top_left",
    dropout_seed: int | None = None,
) -> Tensor:
    """attn.scaled_dot_product_attention with gradients of query, key, value, a float mask, sinks
    and alibi. Runs on torch.get_num_threads() threads; torch.manual_seed() determines dropout
    unless dropout_seed is given. An operator of PyTorch, which torch.compile() keeps whole.
    """
    if dropout_p > 0 and dropout_seed is None:
        dropout_seed = int(torch.randint(2**62, ()))
    options: tuple[Any, ...] = (dropout_p, is_causal, scale, enable_gqa)
    if not torch.compiler.is_compiling() and not _records_gradient(
            query, key, value, attn_mask, sinks, alibi):
        return _attn.scaled_dot_product_attention(
            query, key, value, attn_mask, *options, window=window, softcap=softcap, sinks=sinks,
            alibi=alibi, key_lengths=key_lengths, offset=offset, dropout_seed=dropout_seed,
            threads=torch.get_num_threads())
    query, key, value = _expanded(query, key, value)
    # An operator's arguments have one type each.
    inputs = (query, key, value, attn_mask, sinks, alibi, key_lengths, *options, window, softcap,
              str(offset), dropout_seed)
    return _forward(*inputs)[0] if torch.compiler.is_compiling() else _Attention.apply(*inputs)


@contextlib.contextmanager
def replace_sdpa() -> Iterator[None]:
    """Puts attn in the place of torch.nn.functional.scaled_dot_product_attention, in all threads.
    Tensors that are not on the CPU, or hold other elements, go on to PyTorch.
    """
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def replacement(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                    enable_gqa=False):
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        is_ours = (all(x.device.type == "cpu" and x.layout == torch.strided for x in tensors)
                   and query.dtype in _DTYPES and query.dtype == key.dtype == value.dtype)
        function = scaled_dot_product_attention if is_ours else original
        return function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                        enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = replacement
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def _records_gradient(*tensors: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    for x in tensors:
        if x is not None and x.requires_grad:
            return True
    return False


def _expanded(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same without broadcast axes, so that PyTorch sums their gradients."""
    if query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return query, key, value
    if query.dim() < 3 or not query.dim() == key.dim() == value.dim():
        return query, key, value  # the call says what is wrong
    leading = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    kv_heads = max(key.shape[-3], value.shape[-3])
    heads = max(query.shape[-3], kv_heads)

    def expand(x: Tensor, to: int) -> Tensor:
        return x.expand(*leading, to if x.shape[-3] == 1 else x.shape[-3], *x.shape[-2:])

    return expand(query, heads), expand(key, kv_heads), expand(value, kv_heads)


def _offset(text: str) -> int | str:
    return text if text in ("top_left", "bottom_right") else int(text)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    sinks: Tensor | None,
    alibi: Tensor | None,
    key_lengths: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    window: Sequence[int] | None,
    softcap: float | None,
    offset: str,
    dropout_seed: int | None,
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return _attn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa,
            window=None if window is None else tuple(window), softcap=softcap, sinks=sinks,
            alibi=alibi, key_lengths=key_lengths, return_lse=True, offset=_offset(offset),
            dropout_seed=dropout_seed, threads=torch.get_num_threads())


_forward = torch.library.custom_op(
    "attn::scaled_dot_product_attention", _attend, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(query, key, value, *_):
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return out, query.new_empty(query.shape[:-1], dtype=dtype)


def _gradients(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    attn_mask: Tensor | None,
    sinks: Tensor | None,
    alibi: Tensor | None,
    key_lengths: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    window: Sequence[int] | None,
    softcap: float | None,
    offset: str,
    dropout_seed: int | None,
    wanted: Sequence[bool],
) -> list[Tensor]:
    with torch.no_grad():
        gradients = _attn.scaled_dot_product_attention_backward(
            d_out, query, key, value, out, lse, attn_mask, dropout_p, is_causal, scale, enable_gqa,
            window=None if window is None else tuple(window), softcap=softcap, sinks=sinks,
            alibi=alibi, key_lengths=key_lengths, offset=_offset(offset),
            dropout_seed=dropout_seed, mask_gradient=wanted[0], sinks_gradient=wanted[1],
            alibi_gradient=wanted[2], threads=torch.get_num_threads())
    return [x for x in gradients if x is not None]


_backward = torch.library.custom_op(
    "attn::scaled_dot_product_attention_backward", _gradients, mutates_args=(), device_types="cpu")


@_backward.register_fake
def _(d_out, query, key, value, out, lse, attn_mask, sinks, alibi, *options):
    extra = [x for x, is_wanted in zip((attn_mask, sinks, alibi), options[-1]) if is_wanted]
    return ([x.new_empty(x.shape) for x in (query, key, value)]
            + [x.new_empty(x.shape, dtype=lse.dtype) for x in extra])


def _setup_context(ctx, inputs, output):
    ctx.options = inputs[7:]
    ctx.save_for_backward(*inputs[:7], *output)


def _differentiate(gradients, ctx, d_out):
    *inputs, out, lse = ctx.saved_tensors
    query, key, value, attn_mask, sinks, alibi, key_lengths = inputs
    wanted = [bool(x) for x in ctx.needs_input_grad[3:6]]
    made = gradients(d_out, query, key, value, out, lse, attn_mask, sinks, alibi, key_lengths,
                     *ctx.options, wanted)
    rest = iter(made[3:])
    others = [next(rest).to(x.dtype) if is_wanted else None
              for x, is_wanted in zip((attn_mask, sinks, alibi), wanted)]
    return (*made[:3], *others, *[None] * (1 + len(ctx.options)))


_forward.register_autograd(
    lambda ctx, d_out, _: _differentiate(_backward, ctx, d_out), setup_context=_setup_context)


class _Attention(torch.autograd.Function):
    """The operator without torch.compile(), where it takes a third of the time."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _attend(*inputs)
        _setup_context(ctx, inputs, output)
        return output[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        return _differentiate(_gradients, ctx, d_out)
