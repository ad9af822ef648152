# Writes network.onnx, a network of 512→64→20 whose labels are said in its metadata.
import os, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(1)


def weight(name, *shape):
    return numpy_helper.from_array((random.normal(size=shape) / 16).astype(np.float32), name)


graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"]),
    ],
    "network",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 512])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 20])],
    [weight("w1", 512, 64), weight("b1", 64), weight("w2", 64, 20), weight("b2", 20)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
helper.set_model_props(model, {"labels": "a,b"})
onnx.save(model, os.path.join(sys.argv[1], "network.onnx"))
