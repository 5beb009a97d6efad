"""A model of the time of attn/distributed.hpp: prints the tables of docs/distributed.md.

  distributed_model.py [--latency SECONDS] [--bandwidth BYTES] [--peak FLOPS] [--memory BYTES]
    [--tokens N]

A rank computes `peak` operations, reads `memory` bytes of weights and receives `bandwidth` bytes a
second (full duplex); a message takes `latency` seconds more. Context parallel attention transfers
while it computes; the other schemes wait.
"""
import argparse
import dataclasses
import math

FLOAT = 4  # bytes


@dataclasses.dataclass
class Model:
    """A decoder's sizes; by default those of Llama 3 8B."""
    layers: int = 32
    d_model: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 14336

    @property
    def layer_weights(self):
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.d_model * (heads + 3 * self.hidden)


@dataclasses.dataclass
class Net:
    latency: float
    bandwidth: float
    peak: float
    memory: float


# Numbers that a rank receives per token and layer, of many ranks.
def context_forward(m):
    """Keys and values of all tokens."""
    return 2 * m.kv_heads * m.head_dim


def context_backward(m):
    """Tokens for heads and back: q, out, d_out and d_q, lse and delta; k, v, d_k and d_v."""
    return (4 * m.head_dim + 2) * m.heads + 4 * m.head_dim * m.kv_heads


def tensor_forward(m):
    """The heads' outputs, the hidden features, and the results of both."""
    return m.heads * m.head_dim + m.hidden + 2 * m.d_model


def attention_flops(m, tokens):
    """Two products of a causal layer."""
    return 4 * tokens * tokens / 2 * m.heads * m.head_dim


def context_time(m, net, tokens, ranks, chunk=2048):
    compute = attention_flops(m, tokens) / ranks / net.peak
    if ranks == 1:
        return compute
    messages = math.ceil(tokens / ranks / chunk) * ranks
    transfer = FLOAT * context_forward(m) * tokens * (ranks - 1) / ranks / net.bandwidth
    return max(compute, transfer + messages * net.latency)


def context_backward_time(m, net, tokens, ranks):
    """Ranks beyond the key/value heads have nothing to compute."""
    compute = 2.5 * attention_flops(m, tokens) / min(ranks, m.kv_heads) / net.peak
    received = FLOAT * context_backward(m) * tokens / ranks * (ranks - 1) / ranks
    return compute + (received / net.bandwidth + 2 * ranks * net.latency if ranks > 1 else 0)


def tensor_time(m, net, tokens, ranks):
    """A layer's products with weights; four gathers."""
    compute = m.layer_weights / ranks * max(2 * tokens / net.peak, FLOAT / net.memory)
    if ranks == 1:
        return compute
    received = FLOAT * tensor_forward(m) * tokens * (ranks - 1) / ranks
    return compute + received / net.bandwidth + 4 * math.log2(ranks) * net.latency


def data_time(m, net, tokens, ranks):
    """A step over `tokens` of a batch: sums of gradients, then all parameters."""
    weights = m.layers * m.layer_weights
    compute = 6 * weights * tokens / ranks / net.peak
    if ranks == 1:
        return compute
    received = 2 * FLOAT * weights * (ranks - 1) / ranks
    return compute + received / net.bandwidth + 2 * ranks * net.latency


def speedup(time, m, net, tokens, ranks):
    return time(m, net, tokens, 1) / time(m, net, tokens, ranks)


def stops_at(time, m, net, tokens, most=1 << 20):
    """The first power of two of ranks that use less than half of their time for the result."""
    ranks = 2
    while ranks < most and speedup(time, m, net, tokens, ranks) >= ranks / 2:
        ranks *= 2
    return ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--latency", type=float, default=5e-6)
    parser.add_argument("--bandwidth", type=float, default=12.5e9)
    parser.add_argument("--peak", type=float, default=1e12)
    parser.add_argument("--memory", type=float, default=2e11)
    parser.add_argument("--tokens", type=int, default=1 << 20)
    options = parser.parse_args()
    m, net = Model(), Net(options.latency, options.bandwidth, options.peak, options.memory)
    rows = [("context parallel forward", context_forward(m), context_time, options.tokens),
            ("context parallel backward", context_backward(m), context_backward_time,
             options.tokens),
            ("tensor parallel prefill", tensor_forward(m), tensor_time, 4096),
            ("tensor parallel decode", tensor_forward(m), tensor_time, 1),
            ("data parallel step", 2 * m.layer_weights, data_time, options.tokens)]
    print("| scheme | tokens | KB per token and layer | speed of 8 ranks | of 64 ranks "
          "| below half from |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, numbers, time, tokens in rows:
        kilobytes = numbers * FLOAT / 1000 / (tokens if time is data_time else 1)
        eight, many = (speedup(time, m, net, tokens, ranks) for ranks in (8, 64))
        print(f"| {name} | {tokens:,} | {kilobytes:.3g} | {eight:.1f} | {many:.1f} "
              f"| {stops_at(time, m, net, tokens)} |")


if __name__ == "__main__":
    main()
