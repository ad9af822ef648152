"""Networks of PyTorch and Keras as ONNX."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence

from ._onnx import OPSET, Exported, SaveError, rename_inputs
from ._sample import Sample
from ._values import need


def torch_module(model: Any, sample: Sample) -> Exported:
    """Turn a module of PyTorch into ONNX."""
    torch = need("torch", "torch", "saving a module of PyTorch")
    onnx = need("onnx", "onnx", "saving a module of PyTorch")
    tensors = {name: v if hasattr(v, "detach") else torch.as_tensor(v) for name, v in _arguments(sample).items()}
    tensors = {name: t.float() if t.dtype == torch.float64 else t for name, t in tensors.items()}
    output = _free("output", sample.arrays())
    trained = model.training
    model.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = model(*tensors.values())
            to = io.BytesIO()
            torch.onnx.export(model, tuple(tensors.values()), to, input_names=list(tensors), output_names=[output],
                              dynamic_axes={name: {0: "rows"} for name in [*tensors, output]}, opset_version=OPSET, dynamo=False)
    finally:
        model.train(trained)
    if not hasattr(answer, "detach"):
        raise TypeError(f"the module answers {type(answer).__name__}, and one tensor is wanted: a row for each row")
    return _exported(onnx.load_from_string(to.getvalue()), sample, answer.detach().cpu().numpy())


def keras_model(model: Any, sample: Sample) -> Exported:
    """Turn a model of Keras into ONNX.

    Keras's own export makes an input of each constant, such as the means of a Normalization layer.
    So the function is frozen first, which leaves the constants in the graph.
    """
    keras = need("keras", "tensorflow", "saving a model of Keras")
    if keras.backend.backend() != "tensorflow":
        raise SaveError(f"Keras computes with {keras.backend.backend()} here, and saving a model needs TensorFlow: set KERAS_BACKEND=tensorflow")
    np = need("numpy", "numpy", "saving a model of Keras")
    tf2onnx = need("tf2onnx", "tf2onnx", "saving a model of Keras")
    given = {name: np.asarray(v) for name, v in _arguments(sample).items()}
    given = {name: v.astype(np.float32) if v.dtype == np.float64 else v for name, v in given.items()}
    with _quiet():
        frozen = _frozen(model, list(given.values()))
        onnx, _ = tf2onnx.convert.from_graph_def(frozen.graph.as_graph_def(), input_names=[t.name for t in frozen.inputs],
                                                 output_names=[t.name for t in frozen.outputs], opset=OPSET)
    rename_inputs(onnx, list(given))
    return _exported(onnx, sample, np.asarray(_call(model, list(given.values()))))


def _frozen(model: Any, arrays: Sequence[Any]) -> Any:
    """Return a function of TensorFlow that has the weights as constants."""
    tf = need("tensorflow", "tensorflow", "saving a model of Keras")
    constants = need("tensorflow.python.framework.convert_to_constants", "tensorflow", "saving a model of Keras")
    specs = [tf.TensorSpec([None, *a.shape[1:]], a.dtype, name=f"x{i}") for i, a in enumerate(arrays)]
    function = tf.function(lambda *tensors: _call(model, tensors)).get_concrete_function(*specs)
    if len(function.outputs) != 1:
        raise TypeError(f"the model has {len(function.outputs)} outputs, and one is wanted: a row for each row")
    return constants.convert_variables_to_constants_v2(function)


def _call(model: Any, tensors: Sequence[Any]) -> Any:
    return model(tensors[0] if len(tensors) == 1 else list(tensors), training=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the warnings of TensorFlow about its own old functions out of the run's log."""
    loggers = [logging.getLogger(name) for name in ("tensorflow", "tf2onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def _arguments(sample: Sample) -> Dict[str, Any]:
    """Return the arguments of a network: a dict has one for each name, and a DataFrame is one table."""
    if isinstance(sample.data, dict):
        return {name: v if hasattr(v, "detach") else sample.arrays()[name] for name, v in sample.data.items()}
    if not sample.by_column:
        return {sample.name: sample.data if hasattr(sample.data, "detach") else sample.arrays()[sample.name]}
    np = need("numpy", "numpy", "saving a network")
    return {_free("table", sample.arrays()): np.column_stack([a.astype(np.float32) for a in sample.arrays().values()])}


def _exported(onnx: Any, sample: Sample, answer: Any) -> Exported:
    """Return a network whose inputs are the columns of the sample."""
    if sample.by_column and not isinstance(sample.data, dict):
        _join_columns(onnx, list(sample.arrays()))
    return Exported(onnx, None, None, answer)


def _join_columns(onnx: Any, names: List[str]) -> None:
    """Replace the one input of a network by an input for each column."""
    helper = need("onnx.helper", "onnx", "saving a network")
    table = onnx.graph.input[0].name
    del onnx.graph.input[:]
    onnx.graph.input.extend(helper.make_tensor_value_info(name, 1, ["rows", 1]) for name in names)
    onnx.graph.node.insert(0, helper.make_node("Concat", names, [table], axis=1))


def _free(name: str, taken: Any) -> str:
    """Return a name that is not the name of a column."""
    while name in taken:
        name += "_"
    return name
