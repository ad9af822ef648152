"""Networks of PyTorch and Keras as ONNX."""

from __future__ import annotations

import io
import warnings
from typing import Any

from ._onnx import OPSET, Exported
from ._sample import Sample
from ._values import need


def torch_module(model: Any, sample: Sample) -> Exported:
    """Turn a module of PyTorch into ONNX."""
    torch = need("torch", "torch", "saving a module of PyTorch")
    onnx = need("onnx", "onnx", "saving a module of PyTorch")
    given = sample.data if isinstance(sample.data, dict) else {sample.name: sample.data}
    tensors = {name: v if hasattr(v, "detach") else torch.as_tensor(sample.arrays()[name]) for name, v in given.items()}
    tensors = {name: t.float() if t.dtype == torch.float64 else t for name, t in tensors.items()}
    trained = model.training
    model.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = model(*tensors.values())
            to = io.BytesIO()
            torch.onnx.export(model, tuple(tensors.values()), to, input_names=list(tensors), output_names=["output"],
                              dynamic_axes={name: {0: "rows"} for name in [*tensors, "output"]}, opset_version=OPSET, dynamo=False)
    finally:
        model.train(trained)
    if not hasattr(answer, "detach"):
        raise TypeError(f"the module answers {type(answer).__name__}, and one tensor is wanted: a row for each row")
    return Exported(onnx.load_from_string(to.getvalue()), None, None, answer.detach().cpu().numpy())
