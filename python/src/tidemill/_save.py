"""Save a model as model.onnx and model.yaml, after a check that it answers as the original."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _card
from ._champion import Answers, Model
from ._export import export
from ._onnx import Exported, SaveError
from ._sample import MOST_INPUTS, Sample, golden_rows
from ._values import need, replacing, write_text

ROWS = 1000  # rows of the sample that are compared
CLOSE = 1e-4  # greatest difference of a score; for other numbers, of the largest of them


class Differs(SaveError):
    """The ONNX model does not answer as the original."""


def save(model: Any, sample: Any, labels: Optional[Sequence[str]], name: str, out: pathlib.Path) -> pathlib.Path:
    """Write the files of a model into a folder. See Run.save."""
    need("onnxruntime", "onnxruntime", "the check of a saved model")
    rows = Sample(_head(sample), name)
    try:
        data, card = _checked(export(model, rows, double=False), rows, labels)
    except Differs as first:
        try:
            data, card = _checked(export(model, rows, double=True), rows, labels)
        except Exception:
            raise first from None
    write_text(out / "model.yaml", _card.write(card))
    with replacing(out / "model.onnx") as part:
        part.write_bytes(data)
    return out / "model.onnx"


def _checked(made: Exported, rows: Sample, labels: Optional[Sequence[str]]) -> Tuple[bytes, Dict[str, Any]]:
    """Return a model and its card, after a check that it answers as the original."""
    _finish(made.onnx)
    if len(made.onnx.graph.input) > MOST_INPUTS:
        raise SaveError(f"the model has {len(made.onnx.graph.input)} inputs, and a scorer reads {MOST_INPUTS}: train on an array, which is one input")
    card = _describe(made, labels)
    data = made.onnx.SerializeToString()
    served = Model(data, card)
    answers = served.ask(rows)
    _compare(made, answers, card.get("labels"))
    card["golden"] = _golden(served, rows, answers)
    return data, card


def _head(sample: Any) -> Any:
    """Return the first rows of a sample."""
    if isinstance(sample, dict):
        return {k: v[:ROWS] for k, v in sample.items()}
    return sample[:ROWS]


def _finish(onnx: Any) -> None:
    """Remove inputs that no node reads, because a scorer would ask each event for them, and what differs by machine or time."""
    onnx.graph.name = "model"  # a random one would make another file of the same model
    used = {name for node in onnx.graph.node for name in node.input} | {o.name for o in onnx.graph.output}
    for value in [v for v in onnx.graph.input if v.name not in used]:
        onnx.graph.input.remove(value)
    for node in [n for n in onnx.graph.node if n.op_type == "StringNormalizer"]:
        kept = [a for a in node.attribute if a.name != "locale"]
        del node.attribute[:]
        node.attribute.extend(kept)
        locale = node.attribute.add()
        locale.name, locale.type, locale.s = "locale", 3, b"C.UTF-8"  # every Linux has it, unlike en_US, the default
    onnx.ir_version = min(onnx.ir_version, 8)


def _describe(made: Exported, labels: Optional[Sequence[str]]) -> Dict[str, Any]:
    """Return the card of a model: where its answer is, and the names of its classes."""
    names = [str(v) for v in labels] if labels is not None else made.labels
    if names is None:
        return {}
    if made.numbers is None:
        if labels is not None:
            raise SaveError("labels name the scores of a model, and this one has none (it lacks predict_proba): train it with class names")
        return {"labels": {"output": made.onnx.graph.output[0].name}, "output": made.onnx.graph.output[0].name}
    if made.numbers.ndim != 2 or made.numbers.shape[1] != len(names):
        raise SaveError(f"there are {len(names)} labels, and the model answers with shape {list(made.numbers.shape)}: give one label for each score")
    return {"labels": names}


def _compare(made: Exported, answers: Answers, names: Any) -> None:
    """Raise an error if the ONNX model does not answer as the original."""
    np = need("numpy", "numpy", "the check of a saved model")
    want = None
    if made.numbers is not None:
        want = np.asarray(made.numbers, dtype=np.float64).reshape(len(made.numbers), -1)
        _compare_numbers(np, want, answers.numbers, 1.0 if made.labels else max(1.0, float(np.abs(want).max())))
    wanted_labels = [] if answers.labels is None else _wanted(made, names, want)
    for row, (got, wanted) in enumerate(zip(answers.labels or [], wanted_labels)):
        if got != wanted and not (want is not None and _tie(np, want[row])):
            raise Differs(f"the ONNX model answers row {row} of the sample with {got!r}, and the original with {wanted!r}")


def _wanted(made: Exported, names: Any, scores: Any) -> List[str]:
    """Return the labels of the original, under the names of the card."""
    if made.predicted is None:
        return [names[i] for i in scores.argmax(axis=1)]
    renamed = dict(zip(made.labels or [], names)) if isinstance(names, list) else {}
    return [renamed.get(p, p) for p in made.predicted]


def _compare_numbers(np: Any, want: Any, got: Any, scale: float) -> None:
    if got is None or got.shape != want.shape:
        shape = None if got is None else list(got.shape)
        raise Differs(f"the ONNX model answers with shape {shape}, and the original with {list(want.shape)}")
    off = np.abs(got - want)
    off[np.isnan(got) & np.isnan(want)] = 0
    bad = ~(off <= CLOSE * scale)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise Differs(f"the ONNX model answers row {row} of the sample with {got[row].tolist()}, and the original with {want[row].tolist()}; "
                        f"{int(bad.any(axis=1).sum())} of {len(want)} rows differ")


def _tie(np: Any, scores: Any) -> bool:
    """Report whether the two best scores are so close that rounding decides."""
    best = np.sort(scores)[-2:]
    return bool(len(best) > 1 and best[1] - best[0] <= 2 * CLOSE)


def _golden(served: Model, rows: Sample, answers: Answers) -> Dict[str, Any]:
    """Return a request with a known answer: of the first rows, the one with the clearest answer."""
    np = need("numpy", "numpy", "the check of a saved model")
    row = 0
    if answers.labels is not None and answers.numbers is not None and answers.numbers.shape[1] > 1:
        best = np.sort(answers.numbers, axis=1)
        row = int(np.argmax(best[:, -1] - best[:, -2]))
    golden: Dict[str, Any] = {"inputs": golden_rows(rows.feeds(served.inputs), row)}
    if answers.labels is not None:
        golden["label"] = answers.labels[row]
    return golden
