"""Arrays: strides, types, memory that is not copied."""

import array

import attn
import numpy
import pytest
from reference import assert_close


def arrays_of(rng, dtype=numpy.float32, shape=(2, 3, 5, 8)):
    return [rng.standard_normal(shape).astype(dtype) for _ in range(3)]


LAYOUTS = {
    "contiguous": lambda x: x,
    "(batch, seq, heads, dim)": lambda x: numpy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "part of a wider one": lambda x: numpy.concatenate([x, x], -1)[..., : x.shape[-1]],
    "every second row": lambda x: numpy.repeat(x, 2, 2)[:, :, ::2],
    "backwards": lambda x: numpy.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
    "last stride of 2": lambda x: numpy.repeat(x, 2, 3)[..., ::2],
    "transposed": lambda x: numpy.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3),
    "Fortran": numpy.asfortranarray,
    "read-only": lambda x: numpy.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "misaligned":
        lambda x: numpy.frombuffer(b"0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
}


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64, numpy.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(rng, layout, dtype):
    plain = arrays_of(rng, dtype)
    given = [LAYOUTS[layout](x) for x in plain]
    expected = attn.scaled_dot_product_attention(*plain)
    numpy.testing.assert_array_equal(attn.scaled_dot_product_attention(*given), expected)
    numpy.testing.assert_array_equal(
        attn.softmax(given[0]), attn.softmax(plain[0]))
    numpy.testing.assert_array_equal(
        attn.linear(given[0], given[1][0, 0]), attn.linear(plain[0], plain[1][0, 0]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [bool, numpy.float32, numpy.float64, numpy.float16])
def test_layouts_of_masks(rng, layout, kind):
    q, k, v = arrays_of(rng)
    mask = (rng.random((2, 3, 5, 5)) < 0.7).astype(kind)
    expected = attn.scaled_dot_product_attention(q, k, v, mask)
    numpy.testing.assert_array_equal(
        attn.scaled_dot_product_attention(q, k, v, LAYOUTS[layout](mask)), expected)


def test_float16(rng):
    half = arrays_of(rng, numpy.float16)
    found = attn.scaled_dot_product_attention(*half)
    assert found.dtype == numpy.float16
    assert_close(found, half)
    # Float queries with 16-bit keys and values.
    query = half[0].astype(numpy.float32)
    found = attn.scaled_dot_product_attention(query, *half[1:])
    assert found.dtype == numpy.float32
    assert_close(found, [query, *half[1:]])


def test_results_are_writable_and_new(rng):
    q, k, v = arrays_of(rng)
    first, second = (attn.scaled_dot_product_attention(q, k, v) for _ in range(2))
    assert first.flags.writeable and first.flags.c_contiguous
    assert not numpy.shares_memory(first, second)
    first[:] = 0
    assert (second != 0).any()


def test_buffers():
    given = array.array("f", [1, 2, 3])
    found = attn.softmax(given)
    assert isinstance(found, numpy.ndarray)
    numpy.testing.assert_allclose(found.sum(), 1, rtol=1e-6)
    numpy.testing.assert_array_equal(attn.softmax(memoryview(given)), found)


def test_objects_with_dlpack_alone(rng):
    class Wrapped:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = rng.standard_normal((3, 8)).astype(numpy.float32)
    for given in (x, x[:, ::2], x.T):
        found = attn.softmax(Wrapped(given))
        assert isinstance(found, numpy.ndarray)
        numpy.testing.assert_array_equal(found, attn.softmax(given))


def test_big_memory_is_not_copied(rng):
    """A call on 512 MB, all of which but one row repeats by strides of 0."""
    row = rng.standard_normal((1, 1, 1, 64)).astype(numpy.float32)
    keys = numpy.broadcast_to(row, (1, 1, 2_000_000, 64))
    found = attn.scaled_dot_product_attention(row, keys, keys)
    numpy.testing.assert_allclose(found, row, rtol=1e-4)


@pytest.mark.parametrize("value, text", [
    (numpy.ones((2, 2), ">f4"), "byte order|found"),
    (numpy.ones((2, 2), complex), "known type|hold"),
    (numpy.array(["a"]), "known type|found"),
    (numpy.array([object()]), "known type|found"),
    (None, "incompatible function arguments"),
    (1.5, "be a numpy array"),
])
def test_other_objects_are_type_errors(value, text):
    with pytest.raises(TypeError, match=text):
        attn.softmax(value)


def test_too_many_axes():
    with pytest.raises(ValueError, match="at most 8 axes"):
        attn.softmax(numpy.ones((1,) * 9, numpy.float32))
