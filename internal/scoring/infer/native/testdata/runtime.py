# Answers with ONNX Runtime: in each folder named, model.onnx and input_0.pb, … are
# read, and output_0.pb, … written; or error.txt, if it takes the model or its
# inputs not.
import os, sys
import numpy, onnx, onnxruntime
from onnx import numpy_helper

onnxruntime.set_default_logger_severity(4)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1


def answer(folder):
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
    given = {}
    for i, port in enumerate(session.get_inputs()):
        with open(os.path.join(folder, f"input_{i}.pb"), "rb") as f:
            given[port.name] = numpy_helper.to_array(onnx.TensorProto.FromString(f.read()))
    for i, value in enumerate(session.run(None, given)):
        if isinstance(value, list):  # ZipMap's: a row's scores by class, in their order
            value = numpy.array([list(row.values()) for row in value], dtype=numpy.float32)
        with open(os.path.join(folder, f"output_{i}.pb"), "wb") as f:
            f.write(numpy_helper.from_array(value).SerializeToString())


for name in sorted(os.listdir(sys.argv[1])):
    folder = os.path.join(sys.argv[1], name)
    try:
        answer(folder)
    except Exception as e:
        with open(os.path.join(folder, "error.txt"), "w") as f:
            f.write(str(e))
