"""Rows of OpenVINO: a compiled graph, weights as constants, inputs shared with it."""

import numpy as np
import openvino
from openvino import opset13 as op

import minilm
from common import Attention, BatchedGemm, EncoderLayer, Gemm, MiniLm, MultiHead, Softmax
from peer import Unsupported, Way, need_element, serve

core = openvino.Core()


def weight_node(operation, weight):
    """A weight (out, in); in int8 with a scale per row, which the plugin multiplies by activations
    of 8 bits."""
    if operation.element != "int8":
        return weight
    scale = np.abs(weight).max(1, keepdims=True) / 127
    codes = op.constant(np.round(weight / scale).astype(np.int8))
    return op.multiply(op.convert(codes, np.float32), op.constant(scale.astype(np.float32)))


def multi_head(operation, x, in_weight, in_bias, out_weight, out_bias):
    """Self-attention from separate operators: three projections, attention per head, the last
    projection."""
    split = [operation.batch, operation.seq, operation.heads, operation.width // operation.heads]

    def heads(weight, bias):
        projected = op.add(op.matmul(x, weight_node(operation, weight), False, True), bias)
        return op.transpose(op.reshape(projected, split, False), [0, 2, 1, 3])

    qkv = map(heads, np.split(in_weight, 3), np.split(in_bias, 3))
    attended = op.transpose(op.scaled_dot_product_attention(*qkv), [0, 2, 1, 3])
    combined = op.reshape(attended, [operation.batch, operation.seq, operation.width], False)
    return op.add(op.matmul(combined, weight_node(operation, out_weight), False, True), out_bias)


def encoder_layer(operation, x, in_weight, in_bias, out_weight, out_bias, **weights):
    def linear(name, x):
        weight = weight_node(operation, weights[name + "_weight"])
        return op.add(op.matmul(x, weight, False, True), weights[name + "_bias"])

    def norm(name, x):
        normal = op.mvn(x, np.array([-1]), True, operation.eps, "inside_sqrt")
        return op.add(op.multiply(normal, weights[name + "_weight"]), weights[name + "_bias"])

    attended = multi_head(operation, x, in_weight, in_bias, out_weight, out_bias)
    y = norm("norm1", op.add(x, attended))
    return norm("norm2", op.add(y, linear("linear2", op.gelu(linear("linear1", y), "erf"))))


def make_request(model, threads, element="float32"):
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if element == "bfloat16" else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if element == "int8" else 0,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # threads of the other libraries are not pinned either
    }
    return core.compile_model(model, "CPU", options).create_infer_request()


def encoder(operation, threads):
    need_element(
        operation, "float32", "bfloat16"
    )  # a separate package quantises the graph
    request = make_request(f"{operation.folder}/{minilm.EXPORTED}", threads, operation.element)
    run = lambda ids, mask: request.infer({"input_ids": ids, "attention_mask": mask})[0]
    return Way(minilm.embedder(operation, threads, run), lambda embeddings: embeddings)


def compiled(operation, inputs, threads):
    if isinstance(operation, MiniLm):
        return encoder(operation, threads)
    constants = {}
    match operation:
        case Attention() if operation.group > 1:
            raise Unsupported("key heads shared by query heads")
        case Gemm(packed=True):
            constants = {"b": inputs["b"]}
        case MultiHead() | EncoderLayer():
            constants = {name: x for name, x in inputs.items() if name != "x"}
    inputs = {name: x for name, x in inputs.items() if name not in constants}
    parameters = {name: op.parameter(x.shape, np.float32) for name, x in inputs.items()}
    nodes = {**parameters, **{name: op.constant(x) for name, x in constants.items()}}
    match operation:
        case Gemm(element="int8"):
            result = op.matmul(nodes["a"], weight_node(operation, constants["b"].T), False, True)
        case Gemm() | BatchedGemm():
            result = op.matmul(nodes["a"], nodes["b"], False, False)
        case Attention():
            result = op.scaled_dot_product_attention(*nodes.values(), causal=operation.causal)
        case Softmax():
            result = op.softmax(nodes["x"], -1)
        case MultiHead():
            result = multi_head(operation, nodes["x"], **constants)
        case EncoderLayer():
            result = encoder_layer(operation, nodes["x"], **constants)
        case _:
            raise Unsupported(f"no graph for {operation}")
    request = make_request(
        openvino.Model([result], list(parameters.values())), threads, operation.element
    )
    for i, x in enumerate(inputs.values()):
        request.set_input_tensor(i, openvino.Tensor(x, shared_memory=True))
    return Way(request.infer, lambda _: request.get_output_tensor().data, keep=inputs)


serve(openvino.__version__.split("-")[0], compiled)
