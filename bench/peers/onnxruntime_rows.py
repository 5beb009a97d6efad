"""Rows of ONNX Runtime: one operator, weights as constants, inputs and output bound beforehand."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import minilm
from common import Attention, BatchedGemm, EncoderLayer, Gemm, MiniLm, MultiHead, Softmax
from peer import Unsupported, Way, need_element, serve

CONTRIB = "com.microsoft"


def make_session(model, threads):
    """Returns a session of a model, a path or bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def in_int8(model):
    """The model with weights in int8; activations are rounded in the call."""
    with tempfile.TemporaryDirectory() as folder:
        quantized = Path(folder, "quantized.onnx")
        # The outputs of ONNX Runtime's own operators have no inferred type.
        quantize_dynamic(model, quantized, extra_options={"DefaultTensorType": TensorProto.FLOAT})
        return onnx.load(quantized)


def graph_way(nodes, inputs, constants, threads, layout=lambda y: y, is_int8=False):
    """Runs the graph, in float32; layout() brings its output "y" into the expected layout."""
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes,
        "graph",
        [info(name, x.shape) for name, x in inputs.items()],
        [info("y", None)],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    if is_int8:
        model = in_int8(model)
    session = make_session(model.SerializeToString(), threads)
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    call = lambda: session.run_with_iobinding(binding)
    return Way(call, lambda _: layout(binding.get_outputs()[0].numpy()), keep=values)


def multi_head_nodes(heads, output):
    return [
        helper.make_node(
            "Attention", ["x", "in_weight", "in_bias"], ["heads"], domain=CONTRIB, num_heads=heads
        ),
        helper.make_node("MatMul", ["heads", "out_weight"], ["projected"]),
        helper.make_node("Add", ["projected", "out_bias"], [output]),
    ]


def encoder_layer_nodes(operation):
    fused = {"domain": CONTRIB}

    def norm(name, x, skip, output):
        inputs = [x, skip, name + "_weight", name + "_bias"]
        return helper.make_node(
            "SkipLayerNormalization", inputs, [output], epsilon=operation.eps, **fused
        )

    return [
        *multi_head_nodes(operation.heads, "attended"),
        norm("norm1", "attended", "x", "normal"),
        helper.make_node("MatMul", ["normal", "linear1_weight"], ["wide"]),
        helper.make_node("BiasGelu", ["wide", "linear1_bias"], ["active"], **fused),
        helper.make_node("MatMul", ["active", "linear2_weight"], ["narrow"]),
        helper.make_node("Add", ["narrow", "linear2_bias"], ["fed"]),
        norm("norm2", "fed", "normal", "y"),
    ]


def standard(operation, inputs, threads):
    """ONNX's own operators; for a module, the operator that ONNX Runtime's optimizer replaces it
    by."""
    need_element(operation, "float32", "int8")
    constants = {}
    match operation:
        case BatchedGemm():
            nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
        case Gemm():
            nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
            if operation.packed:
                inputs, constants = {"a": inputs["a"]}, {"b": inputs["b"]}
        case Attention():
            nodes = [
                helper.make_node(
                    "Attention", ["q", "k", "v"], ["y"], is_causal=int(operation.causal)
                )
            ]
        case Softmax():
            nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
        case MultiHead():
            nodes = multi_head_nodes(operation.heads, "y")
        case EncoderLayer():
            nodes = encoder_layer_nodes(operation)
        case _:
            raise Unsupported(f"no graph for {operation}")
    if isinstance(operation, (MultiHead, EncoderLayer)):
        constants = {name: np.ascontiguousarray(x.T) for name, x in inputs.items() if name != "x"}
        inputs = {"x": inputs["x"]}
    return graph_way(nodes, inputs, constants, threads, is_int8=operation.element == "int8")


def contrib_attention(operation, inputs, threads, combined):
    """ONNX Runtime's MultiHeadAttention, which takes the inputs named in `combined` as (batch, seq,
    heads * dim)."""
    if not isinstance(operation, Attention) or operation.group > 1:
        raise Unsupported(f"no MultiHeadAttention for {operation}")
    combine = lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)
    need_element(operation, "float32")
    inputs = {name: combine(x) if name in combined else x for name, x in inputs.items()}
    options = {
        "domain": CONTRIB,
        "num_heads": operation.heads,
        "unidirectional": int(operation.causal),
    }
    nodes = [helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], **options)]
    split = (operation.batch, operation.q_len, operation.heads, operation.dim)
    return graph_way(nodes, inputs, {}, threads, layout=lambda y: y.reshape(split).swapaxes(1, 2))


def contrib_projected(operation, inputs, threads):
    """Keys and values in the layout of a projection's output."""
    return contrib_attention(operation, inputs, threads, combined="qkv")


def contrib_cached(operation, inputs, threads):
    """Keys and values in the layout of a cache, head by head."""
    return contrib_attention(operation, inputs, threads, combined="q")


def encoder(operation, inputs, threads, file):
    if not isinstance(operation, MiniLm):
        raise Unsupported(f"no sentences in {operation}")
    session = make_session(f"{operation.folder}/{file}", threads)
    run = lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    return Way(minilm.embedder(operation, threads, run), lambda embeddings: embeddings)


def exported_encoder(operation, inputs, threads):
    need_element(operation, "float32")
    return encoder(operation, inputs, threads, minilm.EXPORTED)


def optimized_encoder(operation, inputs, threads):
    """The encoder as ONNX Runtime's optimizer for BERT makes it."""
    need_element(operation, "float32", "int8")
    return encoder(
        operation,
        inputs,
        threads,
        minilm.QUANTIZED if operation.element == "int8" else minilm.OPTIMIZED,
    )


serve(
    onnxruntime.__version__,
    standard,
    contrib_projected,
    contrib_cached,
    exported_encoder,
    optimized_encoder,
)
