"""PyTorch's tensors, and attn.torch: values and gradients beside PyTorch's own."""

import copy
import subprocess
import sys

import numpy
import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(2**31)))


def tensors_of(dtype=torch.float32, kv_heads=4, requires_grad=False, dim=8):
    shapes = ((2, 4, 7, dim), (2, kv_heads, 9, dim), (2, kv_heads, 9, dim - 1))
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def tolerance(dtype):
    return 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("gqa", [False, True])
def test_values(dtype, mask, gqa):
    tensors = tensors_of(dtype, 2 if gqa else 4)
    options = {"enable_gqa": gqa}
    if mask == "causal":
        options["is_causal"] = True
    elif mask != "none":
        options["attn_mask"] = torch.randn(4, 7, 9, dtype=dtype)
        if mask == "bool":
            options["attn_mask"] = options["attn_mask"] > -1
            options["attn_mask"][..., 0] = True
    found = attn.scaled_dot_product_attention(*tensors, **options)
    wide = {name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
            for name, x in options.items()}
    expected = F.scaled_dot_product_attention(*(x.double() for x in tensors), **wide)
    assert found.dtype == dtype and found.shape == expected.shape
    limit = tolerance(dtype)
    torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions(dtype):
    x, weight, bias, norm = (
        torch.randn(shape, dtype=dtype) for shape in ((2, 3, 8), (5, 8), (5,), (8,)))
    pairs = [
        (attn.linear(x, weight, bias), F.linear(x.double(), weight.double(), bias.double())),
        (attn.softmax(x, 1), x.double().softmax(1)),
        (attn.log_softmax(x), x.double().log_softmax(-1)),
        (attn.layer_norm(x, (8,), norm, norm),
         F.layer_norm(x.double(), (8,), norm.double(), norm.double())),
        (attn.rms_norm(x, 8, norm, 0.1), F.rms_norm(x.double(), (8,), norm.double(), 0.1)),
    ]
    for found, expected in pairs:
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.double(), expected, rtol=4 * tolerance(dtype), atol=4 * tolerance(dtype))


def test_rms_norm_has_the_default_of_pytorch():
    x = torch.randn(3, 8) * 1e-3
    torch.testing.assert_close(attn.rms_norm(x, 8), F.rms_norm(x, (8,)))


def test_memory_is_shared():
    """A tensor and an array of the same memory have the same results, also after a change."""
    q, k, v = tensors_of()
    arrays = [x.numpy() for x in (q, k, v)]
    for _ in range(2):
        found = attn.scaled_dot_product_attention(q, k, v)
        assert isinstance(found, torch.Tensor)
        numpy.testing.assert_array_equal(
            found.numpy(), attn.scaled_dot_product_attention(*arrays))
        arrays[2] += 1


def test_big_memory_is_not_copied():
    row = torch.randn(1, 1, 1, 64)
    keys = row.expand(1, 1, 2_000_000, 64)
    torch.testing.assert_close(
        attn.scaled_dot_product_attention(row, keys, keys), row, rtol=1e-4, atol=1e-5)


def test_strides():
    x = torch.randn(2, 7, 3, 4, 8)  # (batch, seq, (q, k, v), heads, dim), as models project them
    q, k, v = x.unbind(2)
    given = [y.transpose(1, 2) for y in (q, k, v)]
    torch.testing.assert_close(
        attn.scaled_dot_product_attention(*given), F.scaled_dot_product_attention(*given))


def test_a_lost_gradient_is_an_error():
    q, k, v = tensors_of(requires_grad=True)
    with pytest.raises(ValueError, match="attn.torch"):
        attn.scaled_dot_product_attention(q, k, v)
    with torch.no_grad():
        attn.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("change", [
    lambda x: x.to("meta"),
    lambda x: x.to_sparse(),
    lambda x: x.to(torch.complex64),
    lambda x: torch._efficientzerotensor(x.shape),
], ids=["meta", "sparse", "complex", "zero"])
def test_other_tensors_are_type_errors(change):
    q, k, v = tensors_of()
    with pytest.raises(TypeError, match="query must|hold"):
        attn.scaled_dot_product_attention(change(q), k, v)


def test_results_lie_on_the_cpu_whatever_the_default_device_is():
    q, k, v = tensors_of()
    expected = attn.scaled_dot_product_attention(q, k, v)
    with torch.device("meta"):
        found = attn.scaled_dot_product_attention(q, k, v)
    assert torch.equal(found, expected)


def test_negated_views():
    x = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(attn.softmax(x), x.softmax(-1))


def test_parameters_and_expanded_tensors():
    x = torch.nn.Parameter(torch.randn(2, 4, 7, 8))
    y = torch.randn(1, 1, 7, 8).expand(2, 4, 7, 8)
    with torch.no_grad():
        torch.testing.assert_close(attn.scaled_dot_product_attention(x, y, x),
                                   F.scaled_dot_product_attention(x, y, x))


def test_pytorch_without_the_exchange_table():
    """As before PyTorch 2.10, where tensors go through __dlpack__()."""
    program = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
import attn
for dtype in (torch.float32, torch.bfloat16):
    x = torch.nn.Parameter(torch.randn(2, 4, 7, 8).to(dtype))
    with torch.no_grad():
        found = attn.scaled_dot_product_attention(x, x, x)
        expected = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
assert attn.softmax(torch.randn(0, 3)).shape == (0, 3)
"""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has none")
    subprocess.run([sys.executable, "-c", program], check=True)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.4},
    "softcap": {"softcap": 2.0},
    "window": {"window": (2, 1), "offset": "bottom_right"},
    "lengths": {"key_lengths": torch.tensor([9, 4])},
    "offset": {"is_causal": True, "offset": 3},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_gradcheck(case, kv_heads):
    tensors = tensors_of(torch.float64, kv_heads, requires_grad=True, dim=3)

    def function(*x):
        return attn.torch.scaled_dot_product_attention(*x, **CASES[case], enable_gqa=True)

    assert torch.autograd.gradcheck(function, tensors)


@pytest.mark.parametrize("shape", [(2, 4, 7, 9), (4, 1, 9), (7, 9), (2, 1, 1, 9), (1, 1, 7, 1)])
def test_gradcheck_of_masks_sinks_and_slopes(shape):
    tensors = tensors_of(torch.float64, requires_grad=True, dim=3)
    mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    sinks, alibi = (torch.rand(4, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def function(q, k, v, bias, logits, slopes):
        return attn.torch.scaled_dot_product_attention(
            q, k, v, bias, sinks=logits, alibi=slopes)

    assert torch.autograd.gradcheck(function, (*tensors, mask, sinks, alibi))


@pytest.mark.parametrize("kind", ["leading axes", "heads", "expanded mask", "3 axes", "2 axes"])
def test_gradcheck_of_shapes(kind):
    def random(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    mask = None
    if kind == "leading axes":  # broadcast, and cannot be merged
        tensors = [random(2, 3, 2, 4, 5), random(1, 3, 2, 6, 5), random(2, 1, 2, 6, 3)]
    elif kind == "heads":
        tensors = [random(2, 1, 4, 5), random(2, 3, 6, 5), random(2, 3, 6, 3)]
    elif kind == "expanded mask":
        tensors = [random(2, 3, 4, 5), random(2, 3, 6, 5), random(2, 3, 6, 3)]
        mask = random(1, 1, 4, 6)
    else:
        axes = int(kind[0])
        tensors = [random(2, 4, 5)[-1 if axes == 2 else slice(None)].detach().requires_grad_(),
                   random(2, 6, 5)[-1 if axes == 2 else slice(None)].detach().requires_grad_(),
                   random(2, 6, 3)[-1 if axes == 2 else slice(None)].detach().requires_grad_()]

    def function(q, k, v, *bias):
        given = bias[0].expand(2, 3, 4, 6) if bias else None
        return attn.torch.scaled_dot_product_attention(q, k, v, given)

    inputs = tensors if mask is None else [*tensors, mask]
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_beside_pytorch(dtype):
    tensors = tensors_of(dtype, requires_grad=True)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    attn.torch.scaled_dot_product_attention(*tensors, is_causal=True).sum().backward()
    F.scaled_dot_product_attention(*wide, is_causal=True).sum().backward()
    for x, y in zip(tensors, wide):
        assert x.grad.dtype == dtype
        torch.testing.assert_close(
            x.grad.double(), y.grad, rtol=8 * tolerance(dtype), atol=8 * tolerance(dtype))


def test_manual_seed_determines_dropout():
    tensors = tensors_of()
    results = []
    for n in (1, 1, 2):
        torch.manual_seed(n)
        results.append(attn.torch.scaled_dot_product_attention(*tensors, dropout_p=0.5))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_operator_is_well_formed():
    q, k, v = tensors_of(requires_grad=True)
    mask = torch.randn(7, 9, requires_grad=True)
    arguments = (q, k, v, mask, None, None, None, 0.0, False, None, False, None, None, "top_left",
                 None)
    torch.library.opcheck(torch.ops.attn.scaled_dot_product_attention.default, arguments)


def test_compile_keeps_the_graph_whole():
    tensors = tensors_of(requires_grad=True)

    def loss(q, k, v):
        return (attn.torch.scaled_dot_product_attention(q * 2, k, v, is_causal=True) ** 2).sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for x, y in zip(torch.autograd.grad(compiled(*tensors), tensors), expected):
        torch.testing.assert_close(x, y)


def test_a_model_trains_alike():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    other = copy.deepcopy(layer)
    x, target = torch.randn(3, 6, 16).double(), torch.randn(3, 6, 16).double()
    original = F.scaled_dot_product_attention

    def train(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    with attn.torch.replace_sdpa():
        assert F.scaled_dot_product_attention is not original
        found = train(other)
    assert F.scaled_dot_product_attention is original
    numpy.testing.assert_allclose(found, train(layer), rtol=1e-9)


def test_replacement_is_called_by_modules():
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 5, 16)
    expected = module(x, x, x, need_weights=False)[0]
    calls = []
    original = attn.torch.scaled_dot_product_attention
    attn.torch.scaled_dot_product_attention = lambda *a, **b: calls.append(1) or original(*a, **b)
    try:
        with attn.torch.replace_sdpa():
            found = module(x, x, x, need_weights=False)[0]
    finally:
        attn.torch.scaled_dot_product_attention = original
    assert calls
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    # Calls that attn does not support are passed on to PyTorch.
    with attn.torch.replace_sdpa():
        q = torch.randn(1, 1, 2, 4, device="meta")
        assert F.scaled_dot_product_attention(q, q, q).device.type == "meta"
