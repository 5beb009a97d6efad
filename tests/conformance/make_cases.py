# Writes ONNX's operator cases, which the package onnx generates, for the conformance suites: make_cases.py DIRECTORY
# OPERATOR... For each operator, OPERATOR.json is a list of name, opset, attributes, names of inputs and outputs, and
# OPERATOR.safetensors holds tensors CASE/in/NAME and CASE/out/NAME.
import json
import pathlib
import struct
import sys
import warnings

import numpy
import onnx
from onnx.backend.test.case.node import collect_testcases

DTYPES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
          "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}


def write_safetensors(path, tensors):
    header, data, at = {}, [], 0
    # Wide elements first, so that every tensor is aligned.
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        data.append(numpy.ascontiguousarray(array).tobytes())
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def attribute_value(attribute):
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, float):
        return float(str(numpy.float32(value)))  # 0.01, not the float32 nearest to it in 17 digits
    return value.decode() if isinstance(value, bytes) else value


def write_operator(folder, operator, cases):
    manifest, tensors = [], {}
    for case in cases:
        node = case.model.graph.node[0]
        inputs, outputs = case.data_sets[0]
        named = ("in", case.model.graph.input, inputs), ("out", case.model.graph.output, outputs)
        for side, declared, arrays in named:
            for value, array in zip(declared, arrays, strict=True):
                tensors[f"{case.name}/{side}/{value.name}"] = numpy.asarray(array)
        manifest.append({
            "name": case.name,
            "opset": case.model.opset_import[0].version,
            # Subgraphs, such as FlexAttention's modifiers, are left out: the case's name identifies them.
            "attrs": {a.name: attribute_value(a) for a in node.attribute if a.type != onnx.AttributeProto.GRAPH},
            "inputs": [value.name for value in case.model.graph.input],
            "outputs": [value.name for value in case.model.graph.output],
            "node_inputs": list(node.input),
            "node_outputs": list(node.output),
        })
    (folder / f"{operator}.json").write_text(json.dumps(manifest, indent=1))
    write_safetensors(folder / f"{operator}.safetensors", tensors)


folder, operators = pathlib.Path(sys.argv[1]), sys.argv[2:]
folder.mkdir(parents=True, exist_ok=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other operators' cases overflow on purpose
    cases = collect_testcases()
for operator in operators:
    # Cases with several nodes are the operator written as a function.
    of_operator = [case for case in cases
                   if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type == operator]
    write_operator(folder, operator, of_operator)
    print(f"{operator}: {len(of_operator)} cases of onnx {onnx.__version__}")
