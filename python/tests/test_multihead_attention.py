"""MultiheadAttention: the golden cases of PyTorch, and PyTorch itself where it is installed."""

import attn
import numpy
import pytest


def small(**options):
    module = attn.MultiheadAttention(8, 2, batch_first=True, **options)
    state = {name: numpy.full_like(x, 0.1) for name, x in module.state_dict().items()}
    module.load_state_dict(state)
    return module, state


def test_by_hand(rng):
    module = attn.MultiheadAttention(4, 1, bias=False, batch_first=True)
    eye = numpy.eye(4, dtype=numpy.float32)
    module.load_state_dict({"in_proj_weight": numpy.concatenate([eye] * 3), "out_proj.weight": eye})
    x = rng.standard_normal((2, 5, 4)).astype(numpy.float32)
    found, weights = module(x, x, x)
    expected = attn.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
    numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    numpy.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert module(x, x, x, need_weights=False)[1] is None
    numpy.testing.assert_array_equal(module(x[0], x[0], x[0])[0], found[0])


def test_state_dict_round_trip():
    module, state = small()
    assert set(state) == {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}
    for name, x in module.state_dict().items():
        numpy.testing.assert_array_equal(x, state[name])


def test_wrong_state_changes_nothing():
    module, state = small()
    wrong = {"missing": {k: x for k, x in state.items() if k != "in_proj_bias"},
             "unexpected": {**state, "other": state["in_proj_bias"]},
             "have shape": {**state, "in_proj_bias": state["in_proj_bias"][1:]}}
    for text, given in wrong.items():
        with pytest.raises(ValueError, match=text):
            module.load_state_dict({name: 2 * x for name, x in given.items()})
    numpy.testing.assert_array_equal(module.state_dict()["in_proj_bias"], state["in_proj_bias"])


def test_errors():
    module, _ = small()
    x = numpy.ones((1, 3, 8), numpy.float32)
    with pytest.raises(TypeError, match="query must hold float32"):
        module(x.astype(float), x, x)
    with pytest.raises(ValueError, match="key must have shape"):
        module(x, x[..., :7], x)
    with pytest.raises(ValueError, match="attn_mask must have shape"):
        module(x, x, x, attn_mask=numpy.ones((3, 3, 3), bool))
    with pytest.raises(ValueError, match="num_heads must divide"):
        attn.MultiheadAttention(8, 3)
    with pytest.raises(TypeError, match="dtype must be one of"):
        attn.MultiheadAttention(8, 2, dtype="int8")


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_beside_pytorch(rng, batch_first, other, appends, dtype):
    torch = pytest.importorskip("torch")
    torch.manual_seed(int(rng.integers(2**31)))
    kind = getattr(torch, dtype)
    width = 10 if other else 16
    module = torch.nn.MultiheadAttention(
        16, 4, batch_first=batch_first, kdim=width, vdim=width, add_bias_kv=appends,
        add_zero_attn=appends, dtype=kind).eval()
    ours, exact = attn.MultiheadAttention.from_torch(module), module.double()
    query, memory = torch.randn(3, 5, 16, dtype=kind), torch.randn(3, 6, width, dtype=kind)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, -2:] = True
    masks = [None, torch.rand(5, 6) > 0.7, torch.randn(12, 5, 6, dtype=kind)]
    masks[1][:, 0] = False
    if not batch_first:
        query, memory = query.transpose(0, 1), memory.transpose(0, 1)
    for mask in masks:
        # PyTorch requires both masks to have the same type.
        masked, wide = padding, (padding, mask)
        if mask is not None and mask.is_floating_point():
            masked = torch.zeros(3, 6, dtype=kind).masked_fill(padding, -torch.inf)
            wide = (masked.double(), mask.double())
        for average in (True, False):
            found, weights = ours(query, memory, memory, masked, True, mask, average)
            expected, expected_weights = exact(
                query.double(), memory.double(), memory.double(), wide[0], True, wide[1], average)
            limit = 32 * torch.finfo(kind).eps
            torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit)
            torch.testing.assert_close(weights.double(), expected_weights, rtol=limit, atol=limit)
