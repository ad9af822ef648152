"""A model as a scorer sees it: model.onnx and model.yaml, asked through ONNX Runtime."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List, Optional, Union

from . import _card
from ._sample import Sample
from ._values import label, need


class Model:
    """An ONNX model and its card. It reads the outputs by the rules of Tidemill's scorers."""

    def __init__(self, onnx: Union[bytes, str], card: Dict[str, Any]) -> None:
        ort = need("onnxruntime", "onnxruntime", "asking an ONNX model")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self._session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        self.inputs = [(i.name, i.type, i.shape) for i in self._session.get_inputs()]
        self.outputs = {o.name: o for o in self._session.get_outputs()}
        given = card.get("labels")
        self.labels: Optional[List[str]] = given if isinstance(given, list) else self._metadata()
        self._label = given["output"] if isinstance(given, dict) else self._label_output()
        self._numbers = card.get("output") or self._number_output()

    def _metadata(self) -> Optional[List[str]]:
        meta = self._session.get_modelmeta().custom_metadata_map
        text = meta.get("labels") or meta.get("intents")
        return [part.strip() for part in text.split(",")] if text else None

    def _label_output(self) -> Optional[str]:
        """Return the output with the label that the model chooses, if there are no labels for its scores."""
        if self.labels is not None:
            return None
        kinds = ("tensor(string)", "tensor(int64)", "tensor(int32)")
        fits = (str(o.name) for o in self.outputs.values() if o.type in kinds and (len(o.shape) < 2 or o.shape[-1] == 1))
        return next(fits, None)

    def _number_output(self) -> Optional[str]:
        floats = [o for o in self.outputs.values() if o.type == "tensor(float)"]
        for o in floats:
            if self.labels is not None and len(o.shape) > 1 and o.shape[-1] == len(self.labels):
                return str(o.name)
        return str(floats[0].name) if floats else None

    def ask(self, sample: Sample) -> "Answers":
        """Return the answers to all rows."""
        out = dict(zip(self.outputs, self._session.run(list(self.outputs), sample.feeds(self.inputs))))
        numbers = out[self._numbers] if self._numbers and self._numbers != self._label else None
        if numbers is not None:
            numbers = numbers.reshape(sample.rows, -1)
        if self._label is not None:
            return Answers([label(v) for v in out[self._label].reshape(-1)], numbers)
        if self.labels is not None and numbers is not None:
            return Answers([self.labels[i] for i in numbers.argmax(axis=1)], numbers)
        return Answers(None, numbers)


class Answers:
    """The answers to some rows: labels and scores of a classifier, or numbers."""

    def __init__(self, labels: Optional[List[str]], numbers: Any) -> None:
        self.labels = labels
        self.numbers = numbers

    def plain(self) -> List[Any]:
        """Return the labels, or one number a row, or a list of numbers a row."""
        if self.labels is not None:
            return list(self.labels)
        rows = self.numbers.tolist()
        return [r[0] for r in rows] if self.numbers.shape[1] == 1 else rows


class Champion:
    """The folder of a version's files, such as those of the promoted version."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._model: Optional[Model] = None

    def __fspath__(self) -> str:
        """Return the path of the folder."""
        return str(self.folder)

    def __truediv__(self, name: str) -> pathlib.Path:
        """Return the path of one of its files."""
        return self.folder / name

    def predict(self, sample: Any) -> List[Any]:
        """Return the answer of its model.onnx to each row: a label as text, or a number. It needs onnxruntime."""
        return self._ask(sample).plain()

    def scores(self, sample: Any) -> Any:
        """Return the scores of a classifier, or the numbers of another model: an array with a row for each row."""
        return self._ask(sample).numbers

    def _ask(self, sample: Any) -> Answers:
        if self._model is None:
            self._model = Model(str(self.folder / "model.onnx"), _card.read(self.folder / "model.yaml"))
        return self._model.ask(Sample(sample))
