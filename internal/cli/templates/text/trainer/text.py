"""The words of a text, for scikit-learn and for operators of ONNX, which count the same.

The model takes original text, so nothing has to split texts before they are scored. No operator
removes a question mark from a word. So the model has each word with each of some endings.
"""
import json

import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper

MARKS = ".,?!;:"
ENDINGS = ["", ".", ",", "?", "!", ";", ":", "...", "??", "!!", "?!"]


def words(text):
    """The words between blanks, in lower case from A to Z, without an ending of the list."""
    lower = "".join(c.lower() if "A" <= c <= "Z" else c for c in text)
    return [word for word in map(bare, lower.split(" ")) if word]


def bare(token):
    word = token.rstrip(MARKS)
    return word if token[len(word):] in ENDINGS else token


def forms(word):
    """The tokens that are counted as a word."""
    return [word] if word[-1] in MARKS else [word + ending for ending in ENDINGS]


def to_onnx(vectorizer, classifier):
    """text → StringNormalizer → StringSplit → TfIdfVectorizer → Gemm → Softmax → probabilities."""
    columns = vectorizer.vocabulary_
    tokens = [(form, column) for word, column in sorted(columns.items()) for form in forms(word)]
    weights, bias = classifier.coef_, classifier.intercept_
    if len(weights) == 1:  # two classes have one row of weights
        weights, bias = np.vstack([-weights / 2, weights / 2]), np.concatenate([-bias / 2, bias / 2])
    weights = (weights * vectorizer.idf_).T  # the counts become TF-IDF in the same product
    tensors = [helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.astype(np.float32).tobytes(), raw=True)
               for name, value in (("weights", weights), ("bias", bias))]
    nodes = [
        helper.make_node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER", locale="C"),
        helper.make_node("StringSplit", ["lower"], ["words", "lengths"], delimiter=" "),
        helper.make_node("TfIdfVectorizer", ["words"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
                         ngram_counts=[0], ngram_indexes=[column for _, column in tokens], pool_strings=[token for token, _ in tokens]),
        helper.make_node("Gemm", ["counts", "weights", "bias"], ["sums"]),
        helper.make_node("Softmax", ["sums"], ["probabilities"], axis=1),
    ]
    ports = [[helper.make_tensor_value_info("text", TensorProto.STRING, ["rows"])],
             [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", weights.shape[1]])]]
    model = helper.make_model(helper.make_graph(nodes, "text", *ports, tensors), opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


def save(out, vectorizer, classifier, sample):
    """Write model.onnx and model.yaml, after a check that the model answers as scikit-learn."""
    model = to_onnx(vectorizer, classifier)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    answers = session.run(None, {"text": np.array(sample, dtype=object)})[0]
    wanted = classifier.predict_proba(vectorizer.transform(sample))
    if np.abs(answers - wanted).max() > 1e-4:
        raise SystemExit(f"the saved model answers with {answers}, and scikit-learn with {wanted}")
    clear = int(answers.max(axis=1).argmax())
    labels = [str(label) for label in classifier.classes_]
    card = {"labels": labels, "golden": {"inputs": {"text": [sample[clear]]}, "label": labels[int(answers[clear].argmax())]}}
    (out / "model.yaml").write_text("".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in card.items()), encoding="utf-8")
    (out / "model.onnx").write_bytes(model)
