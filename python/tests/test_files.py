"""load(): safetensors and .npy."""

import attn
import numpy
import pytest
from conftest import DATA, write_safetensors


def test_types(tmp_path, rng):
    kinds = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2",
             "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "C64": "c8"}
    arrays = {name: rng.integers(0, 100, (2, 3)).astype(kind) for name, kind in kinds.items()}
    entries = {name: (name, x.shape, x.tobytes()) for name, x in arrays.items()}
    wide = rng.standard_normal((2, 3)).astype(numpy.float32)
    bits = (wide.view(numpy.uint32) >> 16).astype(numpy.uint16)
    entries["BF16"] = ("BF16", (2, 3), bits.tobytes())
    entries["BOOL"] = ("BOOL", (2,), b"\1\0")
    entries["F8"] = ("F8_E4M3", (2,), b"\1\2")
    entries["scalar"] = ("F32", (), numpy.float32(2).tobytes())
    entries["empty"] = ("F32", (0, 3), b"")
    found = attn.load(write_safetensors(tmp_path / "a.safetensors", entries))
    assert list(found) == sorted(entries)
    for name, x in arrays.items():
        assert found[name].dtype == x.dtype
        numpy.testing.assert_array_equal(found[name], x)
    numpy.testing.assert_array_equal(
        found["BF16"].view(numpy.uint32), bits.astype(numpy.uint32) << 16)
    assert found["BOOL"].dtype == bool and found["BOOL"].tolist() == [True, False]
    assert found["F8"].tolist() == [1, 2]
    assert found["scalar"].shape == () and found["scalar"] == 2
    assert found["empty"].shape == (0, 3)


def test_views_outlive_the_dict_and_the_file(tmp_path):
    ones = numpy.ones(2, numpy.float32)
    path = write_safetensors(tmp_path / "a.safetensors", {"x": ("F32", (2,), ones.tobytes())})
    x = attn.load(path)["x"]
    path.unlink()
    assert not x.flags.owndata and not x.flags.writeable
    numpy.testing.assert_array_equal(x, [1, 1])


def test_npy(tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.arange(6).reshape(2, 3))
    found = attn.load(str(tmp_path / "x.npy"))
    assert list(found) == ["x"] and found["x"].shape == (2, 3)


def test_a_model(tmp_path):
    found = attn.load(DATA / "sentence_encoder/mean/model.safetensors")
    assert all(isinstance(x, numpy.ndarray) for x in found.values()) and len(found) > 10


def test_errors(tmp_path):
    with pytest.raises(OSError):
        attn.load(tmp_path / "missing.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"12345678{")
    with pytest.raises(OSError, match="bad.safetensors"):
        attn.load(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match="path must end with"):
        attn.load(tmp_path / "model.bin")
    with pytest.raises(ValueError, match="booleans of 0 and 1"):
        attn.load(write_safetensors(tmp_path / "b.safetensors", {"x": ("BOOL", (1,), b"\2")}))
