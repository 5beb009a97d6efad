"""Attention in plain numpy, in the order of its definition."""

import numpy


def attention(q, k, v, attn_mask=None, is_causal=False, scale=None, window=None, softcap=None,
              sinks=None, alibi=None, key_lengths=None, offset="top_left", dtype=numpy.float64):
    """(output, lse) of arrays (batch, heads, seq, dim), computed in `dtype`."""
    batch, heads, q_len, dim = q.shape
    kv_len, kv_heads = k.shape[2], k.shape[1]
    out = numpy.zeros((batch, heads, q_len, v.shape[3]), dtype)
    lse = numpy.zeros((batch, heads, q_len), dtype)
    scale = 1 / numpy.sqrt(dim) if scale is None else scale
    if attn_mask is not None:
        attn_mask = numpy.broadcast_to(attn_mask, (batch, heads, q_len, kv_len))
    for b in range(batch):
        length = kv_len if key_lengths is None else int(key_lengths[b])
        first = {"top_left": 0, "bottom_right": length - q_len}.get(offset, offset)
        position, key = first + numpy.arange(q_len)[:, None], numpy.arange(kv_len)[None, :]
        for h in range(heads):
            kv = h // (heads // kv_heads)
            keys, values = k[b, kv, :length], v[b, kv, :length]
            s = q[b, h].astype(dtype) @ keys.astype(dtype).T * dtype(scale)
            if softcap:
                s = dtype(softcap) * numpy.tanh(s / dtype(softcap))
            visible = numpy.ones((q_len, kv_len), bool)
            if is_causal:
                visible &= key <= position
            if window:
                left, right = window
                visible &= (left < 0) | (key >= position - left)
                visible &= (right < 0) | (key <= position + right)
            visible = visible[:, :length]
            if alibi is not None:
                slope = alibi[h] if alibi.ndim == 1 else alibi[b, h]
                s = s - dtype(slope) * abs(position - key)[:, :length].astype(dtype)
            if attn_mask is not None:
                mask = attn_mask[b, h, :, :length]
                if mask.dtype == bool:
                    visible = visible & mask
                else:
                    s = s + mask.astype(dtype)
            s = numpy.where(visible, s, -numpy.inf)
            scores = s
            if sinks is not None:
                scores = numpy.column_stack([s, numpy.full(q_len, sinks[h], dtype)])
            top = scores.max(axis=1, initial=-numpy.inf)
            shift = numpy.where(numpy.isfinite(top), top, 0)
            total = numpy.exp(scores - shift[:, None]).sum(axis=1)
            with numpy.errstate(divide="ignore"):
                lse[b, h] = numpy.log(total) + shift
            weights = numpy.exp(s - shift[:, None]) / numpy.where(total == 0, 1, total)[:, None]
            out[b, h] = weights.astype(dtype) @ values.astype(dtype)
    return out, lse


def assert_close(found, arrays, **options):
    """At most twice the error of the plain formula in the type of its sums, and the last bits of
    its largest element."""
    is_double = found.dtype == numpy.float64
    exact, _ = attention(*arrays, **options, dtype=numpy.longdouble if is_double else numpy.float64)
    kind = numpy.float64 if is_double else numpy.float32
    plain, _ = attention(*arrays, **options, dtype=kind)
    limit = 2 * abs(plain - exact).max(initial=0)
    limit += 8 * numpy.finfo(found.dtype).eps * abs(exact).max(initial=0) + 1e-300
    error = abs(found.astype(exact.dtype) - exact).max(initial=0)
    assert error <= limit, f"error {error}, limit {limit}, {[x.shape for x in arrays]}, {options}"
