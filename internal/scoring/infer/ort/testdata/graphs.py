# Writes random graphs of the operators that both engines take, for a seed: as many
# as are asked for, each a file.
import os, sys, warnings

warnings.simplefilter("ignore")
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

to, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = np.random.default_rng(seed)


class Graph:
    def __init__(self):
        self.nodes, self.weights = [], []

    def weight(self, *shape, around=0.0):
        name = f"w{len(self.weights)}"
        values = (around + random.normal(size=shape) / np.sqrt(max(shape[0], 1))).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def numbers(self, values):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype=np.int64), name))
        return name

    def add(self, op, *inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name


def step(g, x, n):
    """One layer behind x, which has n columns: its name and its columns."""
    kind, m = random.integers(9), int(random.integers(1, 90))
    if kind == 0:
        turned = bool(random.integers(2))
        w = g.weight(m, n) if turned else g.weight(n, m)
        return g.add("Gemm", x, w, g.weight(m), transB=int(turned), alpha=float(random.choice([1.0, 0.5])), beta=float(random.choice([1.0, 2.0]))), m
    if kind == 1:
        return g.add("MatMul", x, g.weight(n, m)), m
    if kind == 2:
        return g.add("Add", g.add("MatMul", x, g.weight(n, m)), g.weight(m)), m
    if kind == 3:
        return g.add(str(random.choice(["Relu", "Sigmoid", "Tanh"])), x), n
    if kind == 4:
        return g.add(str(random.choice(["Add", "Sub", "Mul"])), x, g.weight(n)), n
    if kind == 5:
        return g.add("Div", x, g.weight(n, around=4.0)), n
    if kind == 6:
        left, a = step(g, x, n)
        right, b = step(g, x, n)
        return g.add("Concat", left, right, axis=int(random.choice([1, -1]))), a + b
    if kind == 7:
        return g.add(str(random.choice(["Flatten", "Identity"])), x), n
    return g.add("Reshape", x, g.numbers([-1, n])), n


for i in range(count):
    g, x, n = Graph(), "x", int(random.integers(1, 200))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, n])]
    for _ in range(random.integers(1, 8)):
        x, n = step(g, x, n)
    outputs = []
    y = g.add(str(random.choice(["Softmax", "Sigmoid", "Identity"])), x)
    outputs.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [None, n]))
    if random.integers(2):
        best = g.add("ArgMax", y, axis=1, keepdims=0)
        outputs.append(helper.make_tensor_value_info(best, TensorProto.INT64, [None]))
    graph = helper.make_graph(g.nodes, "random", inputs, outputs, g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", int(random.choice([13, 17, 20])))], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, os.path.join(to, f"{i:03}.onnx"))
