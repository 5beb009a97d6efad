"""linear, softmax and norms against numpy in double precision."""

import attn
import numpy
import pytest

DTYPES = [numpy.float32, numpy.float64, numpy.float16]


def close(found, expected, dtype):
    assert found.dtype == dtype and found.shape == expected.shape
    eps = numpy.finfo(dtype).eps
    numpy.testing.assert_allclose(found, expected, rtol=8 * eps, atol=16 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 1, 3, 4, 7), (0, 7)])
def test_functions(rng, dtype, shape):
    x = rng.standard_normal(shape).astype(dtype)
    weight, bias = (rng.random(7).astype(dtype) for _ in range(2))
    matrix, summand = rng.random((5, 7)).astype(dtype), rng.random(5).astype(dtype)
    wide = x.astype(float)
    product = wide @ matrix.T.astype(float)
    eps = numpy.finfo(dtype).eps
    numpy.testing.assert_allclose(attn.linear(x, matrix), product, rtol=8 * eps, atol=32 * eps)
    numpy.testing.assert_allclose(
        attn.linear(x, matrix, summand), product + summand.astype(float), rtol=8 * eps,
        atol=32 * eps)
    powers = numpy.exp(wide - wide.max(-1, keepdims=True, initial=-9))
    close(attn.softmax(x), powers / powers.sum(-1, keepdims=True), dtype)
    close(attn.log_softmax(x), numpy.log(powers / powers.sum(-1, keepdims=True)), dtype)
    normal = (wide - wide.mean(-1, keepdims=True)) / numpy.sqrt(
        wide.var(-1, keepdims=True) + 1e-5)
    close(attn.layer_norm(x, 7), normal, dtype)
    close(attn.layer_norm(x, [7], weight, bias),
          normal * weight.astype(float) + bias.astype(float), dtype)
    rms = wide / numpy.sqrt((wide**2).mean(-1, keepdims=True) + 0.5)
    close(attn.rms_norm(x, (7,), weight, 0.5), rms * weight.astype(float), dtype)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_softmax_over_each_axis(rng, dim):
    x = rng.standard_normal((3, 4, 5))
    powers = numpy.exp(x)
    close(attn.softmax(x, dim), powers / powers.sum(dim, keepdims=True), numpy.float64)


def test_norm_over_several_axes(rng):
    x = rng.standard_normal((3, 4, 5))
    for given in (x, x[:, ::2], x.swapaxes(0, 1)):
        shape = given.shape[1:]
        flat = given.reshape(given.shape[0], -1)
        found = attn.layer_norm(given, shape, eps=0)
        expected = (flat - flat.mean(1, keepdims=True)) / flat.std(1, keepdims=True)
        close(found, expected.reshape(given.shape), numpy.float64)


def test_threads():
    before = attn.get_num_threads()
    attn.set_num_threads(1)
    assert attn.get_num_threads() == 1
    attn.set_num_threads(before)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        attn.set_num_threads(0)
    assert attn.instruction_set() in ("scalar", "avx2", "avx512", "neon")


@pytest.mark.parametrize("call, error, text", [
    (lambda x: attn.linear(x, x[:, :2]), ValueError, "weight must"),
    (lambda x: attn.linear(x, x[0]), ValueError, "weight must"),
    (lambda x: attn.linear(x, x, x[:2, 0].copy()), ValueError, "bias must"),
    (lambda x: attn.linear(x, x.astype(float)), TypeError, "weight must hold float32"),
    (lambda x: attn.softmax(x, 2), ValueError, "dim must be an axis"),
    (lambda x: attn.softmax(x.astype(int)), TypeError, "input must hold"),
    (lambda x: attn.layer_norm(x, 3), ValueError, "normalized_shape must be"),
    (lambda x: attn.layer_norm(x, ()), ValueError, "normalized_shape must be"),
    (lambda x: attn.layer_norm(x, 4, x[0, :2].copy()), ValueError, "weight must"),
])
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(numpy.ones((3, 4), numpy.float32))
