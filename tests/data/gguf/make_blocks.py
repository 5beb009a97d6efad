# Needs gguf==0.19.0 numpy==2.4.6 (in a virtual environment): writes blocks.gguf, which holds random blocks of every
# type that attn reads with the package's dequantised values, and floats with the package's quantised blocks.
#
#   python make_blocks.py
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

HERE = pathlib.Path(__file__).parent
READ = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q2_K, Type.Q3_K,
        Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4]
MADE = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
# Places of the float16 numbers in a block: random bits could be NaN, whose payload is not specified.
HALVES = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q4_K: [0, 2],
          Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.IQ4_NL: [0], Type.IQ4_XS: [0],
          Type.MXFP4: []}
random = np.random.default_rng(20240501)


def halves(count):
    """Random bits of finite float16 numbers, including subnormal, zero and negative ones."""
    bits = random.integers(0, 1 << 16, count, dtype=np.uint16)
    return np.where(bits & 0x7C00 == 0x7C00, bits & 0xBFFF, bits).astype(np.uint16)


def random_blocks(kind, blocks=4):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = random.integers(0, 256, (blocks, size), dtype=np.uint8)
    for at in HALVES[kind]:
        raw[:, at:at + 2] = halves(blocks).view(np.uint8).reshape(blocks, 2)
    return raw.reshape(2, -1)


def main():
    writer = gguf.GGUFWriter(HERE / "blocks.gguf", "test")
    for kind in READ:
        raw = random_blocks(kind)
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.expected", quants.dequantize(raw, kind))
    values = np.concatenate([
        random.standard_normal(160), random.standard_normal(32) * 1e-6, np.zeros(32),
        np.linspace(-7, 8, 32),  # ties
        np.arange(32) % 2 - 0.5, -np.ones(32)]).astype(np.float32).reshape(2, -1)
    writer.add_tensor("values", values)
    for kind in MADE:
        writer.add_tensor(f"made.{kind.name}", quants.quantize(values, kind), raw_dtype=kind)
    for name, bits in [("F16", halves(64)), ("BF16", random.integers(0, 0x7F80, 64, dtype=np.uint16))]:
        kind = Type[name]
        raw = bits.view(np.uint8).reshape(2, -1)
        writer.add_tensor(name, bits.view(np.float16).reshape(2, -1) if name == "F16" else raw, raw_dtype=kind)
        wide = bits.view(np.float16).astype(np.float32) if name == "F16" else quants.dequantize(raw, kind)
        writer.add_tensor(f"{name}.expected", wide.reshape(2, -1))
    floats = np.concatenate([random.standard_normal(40) * np.exp(random.uniform(-20, 9, 40)),
                             [65504, 65519.99, 6e-8, 3e-8, 2.9e-8, 0.0, -0.0, 1 + 2**-11, 1 + 3 * 2**-11,
                              2**-14, 2**-14 - 2**-25, 1e-40]]).astype(np.float32)
    writer.add_tensor("floats", floats)
    writer.add_tensor("made.F16", floats.astype(np.float16))
    writer.add_tensor("made.BF16", quants.quantize(floats, Type.BF16), raw_dtype=Type.BF16)
    for kind in READ:  # scales that are not numbers, and blocks of zeros
        raw = random_blocks(kind, 8)
        blocks = raw.reshape(8, -1)
        for at in HALVES[kind]:
            blocks[:5, at:at + 2] = np.array([0x7C00, 0xFC00, 0x7E00, 0, 1], np.uint16).view(np.uint8).reshape(5, 2)
        writer.add_tensor(f"hostile.{kind.name}", raw, raw_dtype=kind)
        with np.errstate(invalid="ignore", over="ignore"):
            writer.add_tensor(f"hostile.{kind.name}.expected", quants.dequantize(raw, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
