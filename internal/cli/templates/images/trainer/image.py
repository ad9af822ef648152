"""Images as arrays of numbers from 0 to 1, and a classifier of them as ONNX."""
import json

import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper
from PIL import Image


def read(file, size):
    """A file as rows of grey pixels."""
    with Image.open(file) as image:
        return np.asarray(image.convert("L").resize((size, size)), dtype=np.float32) / 255


def to_onnx(classifier, size):
    """image[rows, size, size] → Reshape → Gemm → Relu → … → Softmax → probabilities[rows, labels]."""
    layers = list(zip(classifier.coefs_, classifier.intercepts_))
    weights, bias = layers[-1]
    if len(bias) == 1:  # two classes have one output
        layers[-1] = np.hstack([-weights / 2, weights / 2]), np.concatenate([-bias / 2, bias / 2])
    nodes = [helper.make_node("Reshape", ["image", "flat"], ["x0"])]
    tensors = [helper.make_tensor("flat", TensorProto.INT64, [2], [-1, size * size])]
    for i, (weights, bias) in enumerate(layers):
        for name, value in ((f"weights{i}", weights), (f"bias{i}", bias)):
            tensors.append(helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.astype(np.float32).tobytes(), raw=True))
        nodes.append(helper.make_node("Gemm", [f"x{i}", f"weights{i}", f"bias{i}"], [f"sums{i}"]))
        last = i == len(layers) - 1
        nodes.append(helper.make_node("Softmax", [f"sums{i}"], ["probabilities"], axis=1) if last else helper.make_node("Relu", [f"sums{i}"], [f"x{i + 1}"]))
    ports = [[helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", size, size])],
             [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", len(layers[-1][1])])]]
    model = helper.make_model(helper.make_graph(nodes, "image", *ports, tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


def save(out, classifier, sample):
    """Write model.onnx and model.yaml, after a check that the model answers as scikit-learn."""
    model = to_onnx(classifier, sample.shape[1])
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    answers = session.run(None, {"image": sample})[0]
    wanted = classifier.predict_proba(sample.reshape(len(sample), -1))
    if np.abs(answers - wanted).max() > 1e-4:
        raise SystemExit(f"the saved model answers with {answers}, and scikit-learn with {wanted}")
    clear = int(answers.max(axis=1).argmax())
    labels = [str(label) for label in classifier.classes_]
    golden = {"inputs": {"image": [sample[clear].tolist()]}, "label": labels[int(answers[clear].argmax())]}
    (out / "model.yaml").write_text(f"labels: {json.dumps(labels, ensure_ascii=False)}\ngolden: {json.dumps(golden, ensure_ascii=False)}\n", encoding="utf-8")
    (out / "model.onnx").write_bytes(model)
