"""MultiheadAttention: torch.nn.MultiheadAttention for inference, with its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attn import _attn

if TYPE_CHECKING:
    from attn._attn import Array

_MODULES = {
    "float32": _attn.MultiheadAttentionFloat32,
    "float64": _attn.MultiheadAttentionFloat64,
    "bfloat16": _attn.MultiheadAttentionBfloat16,
    "float16": _attn.MultiheadAttentionFloat16,
}


def _dtype_name(dtype: Any) -> str:
    """The name of a dtype of numpy or PyTorch, or of a text."""
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return name.removeprefix("torch.")


class MultiheadAttention:
    """PyTorch's torch.nn.MultiheadAttention for inference: parameters are zero until loaded.

    Dropout is accepted and not applied. As in PyTorch, a boolean mask masks a key out where it is
    True, and inputs are (seq, batch, features) unless batch_first, or (seq, features).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        dtype: Any = "float32",
    ) -> None:
        name = _dtype_name(dtype)
        if name not in _MODULES:
            known = ", ".join(_MODULES)
            raise TypeError(f"[MultiheadAttention] dtype must be one of {known}; found {name}.")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self._module: Any = _MODULES[name](
            embed_dim, num_heads, bias, add_bias_kv, add_zero_attn, kdim, vdim)

    @classmethod
    def from_torch(cls, module: Any) -> MultiheadAttention:
        """A copy of a torch.nn.MultiheadAttention."""
        result = cls(
            module.embed_dim, module.num_heads, module.dropout, module.in_proj_bias is not None,
            module.bias_k is not None, module.add_zero_attn, module.kdim, module.vdim,
            module.batch_first, dtype=module.out_proj.weight.dtype)
        result.load_state_dict({name: x.detach() for name, x in module.state_dict().items()})
        return result

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copies arrays under PyTorch's names. Raises ValueError, and changes nothing, unless all
        fit."""
        self._module.load_state_dict(dict(state_dict))

    def state_dict(self) -> dict[str, Any]:
        """Copies of the parameters as numpy arrays, those of 16 bits as float32."""
        return self._module.state_dict()

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        threads: int | None = None,
    ) -> tuple[Array, Array | None]:
        """(result, weights): weights is None unless need_weights."""
        unbatched = query.ndim == 2
        if unbatched:
            axis = 0 if self.batch_first else 1
            query, key, value = (_with_axis(x, axis) for x in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[None]
        wanted = "none" if not need_weights else "average" if average_attn_weights else "heads"
        result, weights = self._module.forward(
            query, key, value, key_padding_mask, attn_mask, is_causal, wanted, self.batch_first,
            threads)
        if unbatched:
            result = result.squeeze(axis)
            weights = None if weights is None else weights[0]
        return result, weights

    __call__ = forward


def _with_axis(x: Any, axis: int) -> Any:
    return x[None] if axis == 0 else x[:, None]
