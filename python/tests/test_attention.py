"""scaled_dot_product_attention against the definition in double precision."""

import itertools
import os
import threading

import attn
import numpy
import pytest
from reference import assert_close, attention

MASKS = {
    "none": lambda rng, shape: None,
    "bool": lambda rng, shape: rng.random(shape) < 0.7,
    "float": lambda rng, shape: rng.standard_normal(shape),
    "keys": lambda rng, shape: rng.random((1, 1, 1, shape[3])) < 0.7,
    "queries and keys": lambda rng, shape: rng.standard_normal(shape[2:]),
    "keys alone": lambda rng, shape: rng.random(shape[3]) < 0.7,
    "heads": lambda rng, shape: rng.random(shape[1:]) < 0.7,
}


def random_arrays(rng, batch=2, heads=4, kv_heads=4, q_len=9, kv_len=17, dim=8, dim_v=5,
                  dtype=numpy.float32):
    shapes = ((batch, heads, q_len, dim), (batch, kv_heads, kv_len, dim),
              (batch, kv_heads, kv_len, dim_v))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def check(arrays, options):
    out, lse = attn.scaled_dot_product_attention(
        *arrays, **options, enable_gqa=True, return_lse=True)
    assert out.dtype == arrays[0].dtype
    assert_close(out, arrays, **options)
    numpy.testing.assert_allclose(lse, attention(*arrays, **options)[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_masks(rng, dtype, mask, is_causal, kv_heads):
    arrays = random_arrays(rng, kv_heads=kv_heads, dtype=dtype)
    given = MASKS[mask](rng, (2, 4, 9, 17))
    check(arrays, {"attn_mask": given, "is_causal": is_causal})


EXTRAS = {
    "scale": lambda rng: {"scale": 0.3},
    "window": lambda rng: {"window": (3, 1)},
    "softcap": lambda rng: {"softcap": 2.0},
    "sinks": lambda rng: {"sinks": rng.standard_normal(4)},
    "alibi": lambda rng: {"alibi": rng.random(4).astype(numpy.float32)},
    "lengths": lambda rng: {"key_lengths": numpy.array([17, 6])},
    "offset": lambda rng: {"offset": "bottom_right"},
}


@pytest.mark.parametrize("names", list(itertools.combinations(EXTRAS, 2)), ids="+".join)
def test_pairs_of_options(rng, names):
    options = {"is_causal": True}
    for name in names:
        options.update(EXTRAS[name](rng))
    check(random_arrays(rng), options)


@pytest.mark.parametrize("number", range(60))
def test_random_calls(rng, number):
    sizes = [0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 65, 130]
    kv_heads, share = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    q_len, kv_len = int(rng.choice(sizes[1:])), int(rng.choice(sizes))
    batch, heads = int(rng.integers(1, 4)), kv_heads * share
    arrays = random_arrays(rng, batch, heads, kv_heads, q_len, kv_len, int(rng.choice(sizes[1:8])),
                           int(rng.choice(sizes[1:8])), rng.choice([numpy.float32, numpy.float64]))
    shape = (batch, heads, q_len, kv_len)
    options = {
        "attn_mask": MASKS[rng.choice(list(MASKS))](rng, shape),
        "is_causal": bool(rng.integers(2)),
        "offset": ["top_left", "bottom_right", int(rng.integers(-3, 9))][rng.integers(3)],
    }
    extras = {
        "scale": rng.random(),
        "window": (int(rng.integers(-1, 9)), int(rng.integers(-1, 9))),
        "softcap": 1 + rng.random(),
        "sinks": rng.standard_normal(heads),
        "alibi": rng.random((batch, heads)),
        "key_lengths": rng.integers(0, kv_len + 1, batch),
    }
    options.update({name: value for name, value in extras.items() if rng.random() < 0.3})
    check(arrays, options)


def test_fewer_and_more_axes(rng):
    q, k, v = random_arrays(rng, batch=6)
    whole = attn.scaled_dot_product_attention(q, k, v, is_causal=True)

    def same(found, expected):
        assert found.shape == expected.shape
        numpy.testing.assert_array_equal(found, expected)

    same(attn.scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True), whole[0])
    same(attn.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0], is_causal=True), whole[0, 0])
    folded = [x.reshape(2, 3, *x.shape[1:]) for x in (q, k, v)]
    unfolded = whole.reshape(2, 3, *whole.shape[1:])
    same(attn.scaled_dot_product_attention(*folded, is_causal=True), unfolded)
    # Leading axes that cannot be merged into one.
    turned = [x.swapaxes(0, 1) for x in folded]
    out, lse = attn.scaled_dot_product_attention(*turned, is_causal=True, return_lse=True)
    same(out, unfolded.swapaxes(0, 1))
    assert lse.shape == (3, 2, 4, 9)
    # A mask and lengths with leading axes.
    mask, lengths = rng.random((2, 3, 1, 9, 17)) < 0.7, rng.integers(1, 18, (2, 3))
    out = attn.scaled_dot_product_attention(
        *turned, attn_mask=mask.swapaxes(0, 1), key_lengths=lengths.T)
    flat = attn.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.reshape(6, 1, 9, 17), key_lengths=lengths.reshape(-1))
    same(out, flat.reshape(2, 3, *flat.shape[1:]).swapaxes(0, 1))


def test_leading_axes_broadcast(rng):
    q, k, v = random_arrays(rng, batch=3)
    found = attn.scaled_dot_product_attention(q, k[:1], v[1:2])
    assert_close(found, [q, numpy.repeat(k[:1], 3, 0), numpy.repeat(v[1:2], 3, 0)])
    found = attn.scaled_dot_product_attention(q[:, :1], k, v)
    assert_close(found, [numpy.repeat(q[:, :1], 4, 1), k, v])
    found = attn.scaled_dot_product_attention(q, k[:, :1], v[:, :1])
    assert_close(found, [q, k[:, :1], v[:, :1]])


def test_rows_without_keys_are_zero(rng):
    q, k, v = random_arrays(rng)
    mask = numpy.ones((9, 17), bool)
    mask[4] = False
    out, lse = attn.scaled_dot_product_attention(q, k, v, mask, return_lse=True)
    assert (out[:, :, 4] == 0).all() and (lse[:, :, 4] == -numpy.inf).all()
    assert (out[:, :, 3] != 0).any()


def test_masked_nan_does_not_leak(rng):
    q, k, v = random_arrays(rng)
    expected = attn.scaled_dot_product_attention(q, k, v, key_lengths=[5, 17])
    k[0, :, 5:], v[0, :, 5:] = numpy.nan, numpy.inf
    found = attn.scaled_dot_product_attention(q, k, v, key_lengths=[5, 17])
    numpy.testing.assert_array_equal(found, expected)


def test_empty_axes(rng):
    for changes in ({"batch": 0}, {"q_len": 0}, {"kv_len": 0}, {"heads": 0, "kv_heads": 0}):
        q, k, v = random_arrays(rng, **changes)
        out = attn.scaled_dot_product_attention(q, k, v)
        assert out.shape == (*q.shape[:3], 5)
        assert (out == 0).all()


def test_dropout(rng):
    q, k, v = random_arrays(rng, q_len=64, kv_len=64)
    v[:] = 1
    first = attn.scaled_dot_product_attention(q, k, v, dropout_p=0.5, dropout_seed=7)
    again = attn.scaled_dot_product_attention(q, k, v, dropout_p=0.5, dropout_seed=7, threads=1)
    other = attn.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    numpy.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert abs(first.mean() - 1) < 0.1
    # A call whose leading axes cannot be merged runs in rounds; each round has its own dropout mask.
    turned = [numpy.repeat(x[None, :1], 6, 0).reshape(2, 3, *x.shape[1:]).swapaxes(0, 1)
              for x in (q, k, v)]
    rows = attn.scaled_dot_product_attention(*turned, dropout_p=0.5, dropout_seed=7)
    assert len({row.tobytes() for row in rows.reshape(6, -1)}) == 6


def test_same_bits_on_any_number_of_threads(rng):
    q, k, v = random_arrays(rng, batch=3, q_len=200, kv_len=300)
    one = attn.scaled_dot_product_attention(q, k, v, is_causal=True, threads=1)
    two = attn.scaled_dot_product_attention(q, k, v, is_causal=True, threads=2)
    numpy.testing.assert_array_equal(one, two)


def test_gradients_in_numpy(rng):
    q, k, v = random_arrays(rng, q_len=3, kv_len=4, dim=3, dim_v=2, dtype=numpy.float64)
    bias, sinks, d_out = rng.standard_normal((3, 4)), rng.standard_normal(4), None
    options = {"attn_mask": bias, "sinks": sinks, "softcap": 3.0}
    out, lse = attn.scaled_dot_product_attention(q, k, v, **options, return_lse=True)
    d_out = rng.standard_normal(out.shape)
    found = attn.scaled_dot_product_attention_backward(
        d_out, q, k, v, out, lse, **options, mask_gradient=True, sinks_gradient=True)
    assert found[5] is None
    for x, gradient in zip((q, k, v, bias, sinks), found):
        assert gradient.shape == x.shape
        index = tuple(rng.integers(extent) for extent in x.shape)
        sides = []
        for step in (1e-6, -2e-6):
            x[index] += step
            sides.append((attn.scaled_dot_product_attention(q, k, v, **options) * d_out).sum())
        x[index] += 1e-6
        assert abs((sides[0] - sides[1]) / 2e-6 - gradient[index]) < 1e-6


@pytest.mark.parametrize("change, error, text", [
    ({"key": lambda k: k[..., :7]}, ValueError, "k must have shape"),
    ({"key": lambda k: k[:, :3]}, ValueError, "enable_gqa"),
    ({"key": lambda k: k[0]}, ValueError, "as many axes as query"),
    ({"key": lambda k: k.astype(numpy.float64)}, TypeError, "key must hold float32"),
    ({"query": lambda q: q.astype(int)}, TypeError, "query must hold float32"),
    ({"query": lambda q: q.tolist()}, TypeError, "query must be a numpy array"),
    ({"query": lambda q: q[0, 0, 0]}, ValueError, "at least 2 axes"),
    ({"attn_mask": numpy.ones((3, 3), bool)}, ValueError, "mask must broadcast"),
    ({"attn_mask": numpy.ones((9, 17), int)}, TypeError, "attn_mask must hold"),
    ({"attn_mask": numpy.ones((5, 1, 1, 1), bool)}, ValueError, "leading axes"),
    ({"attn_mask": numpy.ones((1, 1, 1, 1, 1), bool)}, ValueError, "attn_mask must have 1 to 4"),
    ({"dropout_p": 1.0}, ValueError, "dropout.p must lie in"),
    ({"scale": numpy.inf}, ValueError, "scale must be finite"),
    ({"softcap": -1.0}, ValueError, "softcap must be"),
    ({"window": (-2, 0)}, ValueError, "at least -1"),
    ({"sinks": numpy.ones(3, numpy.float32)}, ValueError, "sinks must have shape"),
    ({"alibi": numpy.ones((3, 4), numpy.float32)}, ValueError, "alibi must have shape"),
    ({"key_lengths": [1]}, ValueError, "one length per batch row"),
    ({"key_lengths": [1, 18]}, ValueError, "key_lengths"),
    ({"key_lengths": [1.5, 2.5]}, TypeError, "key_lengths must hold integers"),
    ({"offset": "centre"}, ValueError, "offset must be"),
    ({"threads": 0}, ValueError, "threads must be at least 1"),
    ({"unknown": 1}, TypeError, "incompatible function arguments"),
])
def test_errors(rng, change, error, text):
    arguments = dict(zip(("query", "key", "value"), random_arrays(rng)))
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    with pytest.raises(error, match=text):
        attn.scaled_dot_product_attention(**arguments)


def test_other_threads_run_meanwhile(rng):
    q, k, v = random_arrays(rng, q_len=1500, kv_len=1500, dim=64, dim_v=64)
    worker = threading.Thread(
        target=lambda: attn.scaled_dot_product_attention(q, k, v, threads=1))
    count = 0
    worker.start()
    while worker.is_alive():
        count += 1
    # If the call held the GIL, this loop would not continue.
    assert count > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_computes(rng):
    """As workers of PyTorch's DataLoader do, after the parent has used threads."""
    arrays = random_arrays(rng, batch=3, q_len=200, kv_len=300)
    expected = attn.scaled_dot_product_attention(*arrays, threads=2)
    child = os.fork()
    if child == 0:
        found = attn.scaled_dot_product_attention(*arrays, threads=2)
        os._exit(0 if (found == expected).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_calls_from_several_threads(rng):
    arrays = random_arrays(rng, q_len=100, kv_len=100)
    expected = attn.scaled_dot_product_attention(*arrays)
    results = [None] * 4

    def run(n):
        for _ in range(20):
            results[n] = attn.scaled_dot_product_attention(*arrays)

    workers = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for result in results:
        numpy.testing.assert_array_equal(result, expected)
