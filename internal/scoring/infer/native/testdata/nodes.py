# Writes those of ONNX's own backend tests that consist of the operators named, into
# a folder each: model.onnx and test_data_set_0 with its inputs and outputs.
import os, shutil, sys, warnings

warnings.simplefilter("ignore")
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

to, claimed = sys.argv[1], set(sys.argv[2].split(","))


def ours(model):
    return {node.op_type for node in model.graph.node} <= claimed


def save(path, value, port):
    kind = port.type.WhichOneof("value")
    write = {"sequence_type": numpy_helper.from_list, "optional_type": numpy_helper.from_optional}.get(kind, numpy_helper.from_array)
    message = value if isinstance(value, onnx.TensorProto) else write(value, port.name)
    with open(path, "wb") as f:
        f.write(message.SerializeToString())


for case in collect_testcases(None):
    if not ours(case.model):
        continue
    folder = os.path.join(to, case.name)
    os.makedirs(os.path.join(folder, "test_data_set_0"))
    onnx.save(case.model, os.path.join(folder, "model.onnx"))
    (inputs, outputs), = case.data_sets
    for name, values, ports in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
        for i, value in enumerate(values):
            save(os.path.join(folder, "test_data_set_0", f"{name}_{i}.pb"), value, ports[i])

data = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
for kind in "simple", "pytorch-converted", "pytorch-operator":
    for name in os.listdir(os.path.join(data, kind)):
        folder = os.path.join(data, kind, name)
        if ours(onnx.load(os.path.join(folder, "model.onnx"))):
            shutil.copytree(folder, os.path.join(to, kind + "." + name))
