"""The compared operations: attn_report's shapes, inputs, results in float64, and how a call is
timed."""

import math
import os
import time
import timeit
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np


def random(seed, *shape, scale=1.0):
    """Normally distributed float32 numbers, aligned to 64 bytes like the tensors of every
    library."""
    count = math.prod(shape)
    room = np.empty(count + 16, np.float32)
    begin = -room.ctypes.data // 4 % 16
    array = room[begin : begin + count]
    np.random.default_rng(seed).standard_normal(out=array, dtype=np.float32)
    array *= scale
    return array.reshape(shape)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Operation:
    """An operation of one shape. inputs() are the arguments of expected(), which takes them in
    float64. `element` is the type that numbers may be rounded to: "float32", "bfloat16", or "int8"
    (weights, and activations in the call)."""

    element = "float32"
    trains = False

    @property
    def tolerance(self):
        """The allowed error relative to the largest value: passes the rounding of float32 and, for
        float32, fails that of bfloat16."""
        return {"float32": self.float32_tolerance, "bfloat16": 0.05, "int8": 0.2}[self.element]

    float32_tolerance = 1e-5

    def error(self, found, expected):
        """The largest error relative to the largest value."""
        return np.abs(found - expected).max() / np.abs(expected).max()

    @property
    def element_size(self):
        return {"float32": 4, "bfloat16": 2, "int8": 1}[self.element]

    def equivalents(self):
        """Shapes with the same amount of work, of which a library may compute the one that suits
        it."""
        return [self]


@dataclass(frozen=True)
class Gemm(Operation):
    """(m, k) times (k, n); if `packed`, b is known in advance and may be stored in any layout."""

    m: int
    n: int
    k: int
    packed: bool = False
    element: str = "float32"

    @property
    def flops(self):
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self):
        """Bytes of the weights."""
        return self.element_size * self.k * self.n

    def small(self):
        return replace(self, m=33, n=65, k=47)

    def inputs(self):
        return {"a": random(1, self.m, self.k), "b": random(2, self.k, self.n)}

    def expected(self, a, b):
        return a @ b


@dataclass(frozen=True)
class BatchedGemm(Operation):
    """(batch, m, k) times (batch, k, n)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self):
        return 2 * self.batch * self.m * self.n * self.k

    def small(self):
        return replace(self, batch=3)

    def inputs(self):
        return {
            "a": random(1, self.batch, self.m, self.k),
            "b": random(2, self.batch, self.k, self.n),
        }

    def expected(self, a, b):
        return a @ b


@dataclass(frozen=True)
class Elements(Operation):
    """Functions of (rows, columns): "gelu" by erf, "silu", or "layer_norm" without weights."""

    kind: str
    rows: int
    columns: int
    eps = 1e-5

    @property
    def bytes(self):
        """Bytes read and written."""
        return 2 * 4 * self.rows * self.columns

    def small(self):
        return replace(self, rows=3)

    def inputs(self):
        return {"x": random(1, self.rows, self.columns, scale=3)}

    def expected(self, x):
        match self.kind:
            case "gelu":
                return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
            case "silu":
                return x / (1 + np.exp(-x))
            case "layer_norm":
                return (x - x.mean(-1, keepdims=True)) / np.sqrt(
                    x.var(-1, keepdims=True) + self.eps
                )


@dataclass(frozen=True)
class Attention(Operation):
    """Attention (batch, heads, seq, dim); heads / kv_heads query heads share a key/value head."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dim: int
    causal: bool = False
    element: str = "float32"

    @property
    def flops(self):
        return 4 * self.batch * self.heads * self.q_len * self.kv_len * self.dim

    @property
    def bytes(self):
        """Bytes of keys and values."""
        return 2 * self.element_size * self.batch * self.kv_heads * self.kv_len * self.dim

    @property
    def group(self):
        return self.heads // self.kv_heads

    def equivalents(self):
        """One query of each head that shares keys has the same numbers in memory as that many
        queries of one head."""
        if self.q_len > 1 or self.group == 1:
            return [self]
        return [self, replace(self, heads=self.kv_heads, q_len=self.group)]

    def small(self):
        return replace(
            self, batch=2, heads=2 * self.group, kv_heads=2, q_len=min(self.q_len, 41), kv_len=41
        )

    def inputs(self):
        return {
            "q": random(1, self.batch, self.heads, self.q_len, self.dim),
            "k": random(2, self.batch, self.kv_heads, self.kv_len, self.dim),
            "v": random(3, self.batch, self.kv_heads, self.kv_len, self.dim),
        }

    def expected(self, q, k, v):
        k, v = (x.repeat(self.group, axis=1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) / math.sqrt(self.dim)
        if self.causal:
            scores += np.triu(np.full(scores.shape[2:], -np.inf), 1)
        return softmax(scores) @ v


@dataclass(frozen=True)
class Softmax(Operation):
    """Softmax of each row."""

    rows: int
    columns: int

    def small(self):
        return replace(self, rows=3)

    def inputs(self):
        return {"x": random(1, self.rows, self.columns, scale=3)}

    def expected(self, x):
        return softmax(x)


@dataclass(frozen=True)
class MultiHead(Operation):
    """Self-attention with biases, as PyTorch's nn.MultiheadAttention: weights are (out, in), those
    of q, k and v one below the other."""

    batch: int
    seq: int
    width: int
    heads: int

    @property
    def flops(self):
        return self.batch * self.seq * (8 * self.width**2 + 4 * self.seq * self.width)

    def small(self):
        return replace(self, batch=2, seq=min(self.seq, 9))

    def inputs(self):
        scale = 1 / math.sqrt(self.width)
        return {
            "x": random(1, self.batch, self.seq, self.width),
            "in_weight": random(2, 3 * self.width, self.width, scale=scale),
            "in_bias": random(3, 3 * self.width, scale=scale),
            "out_weight": random(4, self.width, self.width, scale=scale),
            "out_bias": random(5, self.width, scale=scale),
        }

    def expected(self, x, in_weight, in_bias, out_weight, out_bias):
        dim = self.width // self.heads
        qkv = (x @ in_weight.T + in_bias).reshape(self.batch, self.seq, 3, self.heads, dim)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        attention = Attention(self.batch, self.heads, self.heads, self.seq, self.seq, dim)
        y = attention.expected(q, k, v).swapaxes(1, 2).reshape(x.shape)
        return y @ out_weight.T + out_bias


def multi_head_state(inputs, prefix=""):
    """Weights by the names of nn.MultiheadAttention."""
    return {
        prefix + "in_proj_weight": inputs["in_weight"],
        prefix + "in_proj_bias": inputs["in_bias"],
        prefix + "out_proj.weight": inputs["out_weight"],
        prefix + "out_proj.bias": inputs["out_bias"],
    }


@dataclass(frozen=True)
class EncoderLayer(Operation):
    """A post-norm encoder layer with gelu, with the names of PyTorch's
    nn.TransformerEncoderLayer."""

    batch: int
    seq: int
    width: int
    heads: int
    hidden: int
    element: str = "float32"
    eps = 1e-5

    @property
    def attention(self):
        return MultiHead(self.batch, self.seq, self.width, self.heads)

    @property
    def flops(self):
        return self.attention.flops + 4 * self.batch * self.seq * self.width * self.hidden

    def small(self):
        return replace(self, batch=2, seq=min(self.seq, 9))

    def inputs(self):
        scale = 1 / math.sqrt(self.width)
        return self.attention.inputs() | {
            "linear1_weight": random(6, self.hidden, self.width, scale=scale),
            "linear1_bias": random(7, self.hidden, scale=scale),
            "linear2_weight": random(8, self.width, self.hidden, scale=scale),
            "linear2_bias": random(9, self.width, scale=scale),
            "norm1_weight": random(10, self.width),
            "norm1_bias": random(11, self.width),
            "norm2_weight": random(12, self.width),
            "norm2_bias": random(13, self.width),
        }

    def expected(self, x, **weights):
        def linear(name, x):
            return x @ weights[name + "_weight"].T + weights[name + "_bias"]

        def norm(name, x):
            normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.eps)
            return normal * weights[name + "_weight"] + weights[name + "_bias"]

        attention = {
            name: weights[name] for name in ("in_weight", "in_bias", "out_weight", "out_bias")
        }
        y = norm("norm1", x + self.attention.expected(x, **attention))
        hidden = linear("linear1", y)
        hidden *= 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        return norm("norm2", y + linear("linear2", hidden))


@dataclass(frozen=True)
class Experts(Operation):
    """Qwen3's mixture of experts: gated SiLU, the `chosen` most likely experts of each token by a
    softmax, whose weights are divided by their sum."""

    tokens: int
    width: int
    hidden: int
    experts: int
    chosen: int

    @property
    def flops(self):
        return 2 * self.tokens * self.chosen * 3 * self.width * self.hidden

    @property
    def bytes(self):
        """Bytes of the weights of one token's experts."""
        return 4 * self.chosen * 3 * self.width * self.hidden

    def small(self):
        return replace(self, tokens=min(self.tokens, 9), width=40, hidden=24, experts=8, chosen=3)

    def inputs(self):
        scale = 1 / math.sqrt(self.width)
        return {
            "x": random(1, 1, self.tokens, self.width),
            "router": random(2, self.experts, self.width, scale=scale),
            "gate_up": random(3, self.experts, 2 * self.hidden, self.width, scale=scale),
            "down": random(4, self.experts, self.width, self.hidden, scale=scale),
        }

    def expected(self, x, router, gate_up, down):
        likely = softmax(x @ router.T)
        out = np.zeros_like(x)
        for t in range(self.tokens):
            best = np.argsort(likely[0, t])[-self.chosen :]
            for e in best:
                gate, up = np.split(gate_up[e] @ x[0, t], 2)
                weight = likely[0, t, e] / likely[0, t, best].sum()
                out[0, t] += weight * (down[e] @ (gate / (1 + np.exp(-gate)) * up))
        return out


@dataclass(frozen=True)
class MiniLm(Operation):
    """Embeddings of sentences by all-MiniLM-L6-v2, tokenizer included; minilm_files.py fills
    `folder`."""

    folder: str
    sentences: int
    element: str = "float32"
    float32_tolerance = 1e-4
    # 1 - cosine, mean and worst of all lines, that attn is held to on those of
    # tests/examples/precision_test.cpp.
    losses = {"bfloat16": (1e-4, 5e-4), "int8": (5e-3, 2e-2)}

    @property
    def tolerance(self):
        """The allowed error of another library. With rounding it is relative to `losses`: in int8,
        on these lines of random words, PyTorch loses 20 times and ONNX Runtime 15 times as much
        (attn 1.04 times). At 25, cosines are still 0.875 on average, more than those of different
        lines."""
        return {"float32": self.float32_tolerance, "bfloat16": 4, "int8": 25}[self.element]

    own_tolerance = 1.25  # attn's

    def error(self, found, expected):
        """The rounding error relative to `losses`; without rounding, relative to the largest
        value."""
        if self.element not in self.losses:
            return super().error(found, expected)
        sizes = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        lost = 1 - (found * expected).sum(1) / sizes
        mean, worst = self.losses[self.element]
        return max(lost.mean() / mean, lost.max() / worst)

    @property
    def precision(self):
        """The precision's name in attn's programs."""
        return {"float32": "exact", "bfloat16": "bf16", "int8": "int8"}[self.element]

    @property
    def text_file(self):
        return Path(self.folder, "sentences.txt")

    @property
    def embeddings_file(self):
        """The file of float32 embeddings that attn's program writes."""
        return Path(self.folder, f"embeddings_{self.precision}.f32")

    def embeddings(self):
        return np.fromfile(self.embeddings_file, np.float32).reshape(-1, 384)[: self.sentences]

    def text(self):
        return self.text_file.read_text().splitlines()[: self.sentences]

    def small(self):
        return replace(self, sentences=min(self.sentences, 64))

    def inputs(self):
        return {}

    def exact(self):
        return replace(self, element="float32")

    def expected(self):
        """attn's embeddings in float, which all results must agree with; attn's tests compare them
        with PyTorch in double precision."""
        return self.exact().embeddings().astype(np.float64)


@dataclass(frozen=True)
class Llm(Operation):
    """A language model in a GGUF file: prefill of "prompt" tokens; `decoded` tokens after the
    prompt, one by one ("decode", "batch" of conversations, "long" with a cache in 8 bits); or the
    time from the file to the "first" token. attn's program writes the most likely next token to a
    file of `folder`."""

    kind: str
    folder: str
    prompt: int
    decoded: int = 0
    conversations: int = 1
    element: str = "int8"
    tolerance = 1e-9  # the token is the same or not

    @property
    def name(self):
        names = {
            "prompt": "prefill",
            "decode": "decode",
            "batch": "decode_batch",
            "long": "long",
            "first": "first_token",
        }
        ends = {"float32": "_exact", "bfloat16": "_bf16", "int8": ""}
        return f"llm_{names[self.kind]}{ends[self.element]}"

    @property
    def model(self):
        """The file of examples/fetch_llm.sh."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = os.environ.get("ATTN_LLM_DIR") or Path(cache, "attn", "SmolLM2-135M-Instruct")
        return Path(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")

    @property
    def text(self):
        return "The quick brown fox jumps over the lazy dog. " * (self.prompt + self.decoded)

    @property
    def tokens(self):
        """Sentences or tokens processed in the measured time."""
        return self.conversations * (self.decoded or self.prompt)

    @property
    def next_file(self):
        return Path(self.folder, self.name + ".next")

    def small(self):
        return self

    def inputs(self):
        return {}

    def expected(self):
        return np.array([float(self.next_file.read_text())])


@dataclass(frozen=True)
class AttentionTrain(Attention):
    """Forward and backward of attention: (d_q, d_k, d_v)."""

    trains = True

    @property
    def flops(self):
        """Operations of two products forward and five backward, without masks."""
        return 3.5 * super().flops

    def inputs(self):
        return super().inputs() | {"d_out": random(4, self.batch, self.heads, self.q_len, self.dim)}

    def expected(self, q, k, v, d_out):
        scores = q @ k.swapaxes(2, 3) / math.sqrt(self.dim)
        if self.causal:
            scores += np.triu(np.full(scores.shape[2:], -np.inf), 1)
        weights = softmax(scores)
        d_weights = d_out @ v.swapaxes(2, 3)
        d_scores = (
            weights
            * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
            / math.sqrt(self.dim)
        )
        return np.stack([d_scores @ k, d_scores.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ d_out])


@dataclass(frozen=True)
class EncoderTrain(EncoderLayer):
    """A step of AdamW with `dropout`; checks the output before it, computed without dropout."""

    trains = True

    dropout: float = 0.1

    @property
    def flops(self):
        return 3 * super().flops

    def small(self):
        return replace(super().small(), dropout=0.0)


@dataclass(frozen=True)
class GptTrain(Operation):
    """A step of a GPT with tied embeddings, clipping and AdamW; checks that the loss falls."""

    trains = True

    batch: int
    seq: int
    vocab: int
    layers: int
    width: int
    heads: int

    @property
    def tokens(self):
        return self.batch * self.seq

    @property
    def flops(self):
        """Operations of the products with weights, one forward and two backward."""
        layer = 12 * self.width**2 + 13 * self.width
        parameters = (self.vocab + self.seq + 2) * self.width + self.layers * layer
        return 6 * parameters * self.tokens

    def small(self):
        return replace(self, vocab=84, layers=2, width=32, heads=4)

    def inputs(self):
        return {}

    def expected(self):
        return np.ones(1)


def operations(shapes, minilm):
    """All operations by the names of their rows: those that `attn_report --shapes` prints, and
    models."""
    made = {}
    for name, shape in shapes.items():
        fields = dict(shape)
        made[name] = globals()[fields.pop("operation")](**fields)
    folder = minilm.folder
    llm = [
        Llm("prompt", folder, prompt=512),
        Llm("prompt", folder, prompt=512, element="float32"),
        Llm("prompt", folder, prompt=512, element="bfloat16"),
        Llm("decode", folder, prompt=16, decoded=128),
        Llm("batch", folder, prompt=16, decoded=128, conversations=8),
        Llm("long", folder, prompt=4096, decoded=16),
        Llm("first", folder, prompt=16),
    ]
    models = {
        f"minilm_{other.precision}": other
        for other in (replace(minilm, element=e) for e in ("bfloat16", "int8"))
    }
    return made | {"minilm": minilm} | models | {row.name: row for row in llm}


def best_seconds(call, seconds):
    """The shortest of many samples, each of at least 0.1 ms so that reading the clock is
    negligible."""
    call()
    timer = timeit.Timer(call)
    repeats = 1
    end = time.perf_counter() + seconds
    best = math.inf
    while best == math.inf or time.perf_counter() < end:
        sample = timer.timeit(repeats)
        if sample < 1e-4:
            repeats *= 2
        else:
            best = min(best, sample / repeats)
    return best
