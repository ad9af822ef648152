"""What every exporter makes: a model as ONNX, with the answers of the original."""

from __future__ import annotations

from typing import Any, List, Optional

OPSET = 17  # both engines of Tidemill take it
OPSET_ML = 3


class SaveError(Exception):
    """A model cannot be saved, and no file was written."""


class Exported:
    """A model as ONNX, and what the original answers to the sample."""

    def __init__(self, onnx: Any, labels: Optional[List[str]], predicted: Optional[List[str]], numbers: Any) -> None:
        self.onnx = onnx  # onnx.ModelProto
        self.labels = labels  # names of the classes; None if it is not a classifier
        self.predicted = predicted  # labels of the rows
        self.numbers = numbers  # scores or values of the rows; None for a classifier without scores


def rename_inputs(onnx: Any, names: List[str]) -> None:
    """Give the inputs their own names, of which converters keep only letters, digits and underscores."""
    renamed = {value.name: name for value, name in zip(onnx.graph.input, names)}
    for value in onnx.graph.input:
        value.name = renamed[value.name]
    for node in onnx.graph.node:
        inputs = [renamed.get(i, i) for i in node.input]
        del node.input[:]
        node.input.extend(inputs)
