"""Models as ONNX: the choice of the exporter, and that for models of scikit-learn."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Tuple

from . import _boosting
from ._networks import keras_model, torch_module
from ._onnx import OPSET, OPSET_ML, Exported, SaveError, rename_inputs
from ._sample import Sample, is_text
from ._values import column, label, need, plain


def export(model: Any, sample: Sample, double: bool) -> Exported:
    """Turn a model into ONNX by the library that it is from.

    With double, the model computes in double precision, as the original does. It is slower. But a
    tree that asks whether a scaled number is at most 20 can otherwise answer differently for 20.
    """
    module = {c.__module__.partition(".")[0] for c in type(model).__mro__}
    if "keras" in module:  # with PyTorch below it, it is a module of PyTorch, too
        return keras_model(model, sample)
    if "torch" in module:
        return torch_module(model, sample)
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        return _sklearn(getattr(model, "best_estimator_", model), sample, double)
    raise TypeError(f"{type(model).__module__}.{type(model).__name__} cannot be saved: give a fitted estimator or pipeline of "
                    "scikit-learn, LGBMClassifier, XGBClassifier, CatBoostClassifier and the like, a module of PyTorch, "
                    "or a model of Keras; or write model.onnx yourself")


def _sklearn(model: Any, sample: Sample, double: bool) -> Exported:
    need("sklearn", "scikit-learn", "saving this model")
    skl2onnx = need("skl2onnx", "skl2onnx", "saving a model of scikit-learn")
    _register(model)
    rows = sample.frame()
    whole = _readable(model)
    if sample.by_column and not _takes_columns(model):
        whole = _joined(whole, rows)
    if double and _compares_floats(_steps(model)[-1]):
        whole = _narrowed(whole)
    classes = getattr(model, "classes_", None) if _is_classifier(model) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx = _convert(skl2onnx, whole, _types(sample, double), classes is not None)
        labels = None if classes is None else [label(c) for c in plain(classes)]
        predicted = model.predict(rows)
        numbers = model.predict_proba(rows) if hasattr(model, "predict_proba") else None if labels else predicted
    rename_inputs(onnx, list(sample.arrays()))
    if double:
        _impute_doubles(onnx, model)
        _split_at_doubles(onnx, _steps(model)[-1])
        _answer_floats(onnx)
    return Exported(onnx, labels, [label(v) for v in column(predicted)] if labels else None, numbers)


def _convert(skl2onnx: Any, model: Any, types: Any, classifier: bool) -> Any:
    options = {id(model): {"zipmap": False}} if classifier else None
    try:
        with _booleans_as_numbers():
            return skl2onnx.convert_sklearn(model, initial_types=types, options=options, target_opset={"": OPSET, "ai.onnx.ml": OPSET_ML})
    except SaveError:
        raise
    except Exception as e:  # the converters raise errors of many kinds, some with the whole model in their text
        text = str(e)
        text = text if len(text) < 500 else text[:200] + " … " + text[-200:]
        raise SaveError(f"skl2onnx cannot turn this model into ONNX: {type(e).__name__}: {text}") from None


@contextmanager
def _booleans_as_numbers() -> Iterator[None]:
    """Let skl2onnx write the trees of HistGradientBoosting: it gives onnx booleans where onnx wants numbers."""
    trees = need("skl2onnx.common.tree_ensemble", "skl2onnx", "saving a model of scikit-learn")
    name, add = "nodes_missing_value_tracks_true", trees.add_node
    trees.add_node = lambda *a, **k: add(*a, **{**k, name: int(k[name])} if name in k else k)
    try:
        yield
    finally:
        trees.add_node = add


def _compares_floats(last: Any) -> bool:
    """Report whether a step turns its input into 32-bit floats, as most trees do."""
    module = type(last).__module__
    return module.startswith(("sklearn.tree", "sklearn.ensemble", "xgboost", "catboost")) and "_hist_gradient_boosting" not in module


def _narrowed(model: Any) -> Any:
    """Put a step before the last one that turns doubles into floats, as these trees do by themselves."""
    sklapi = need("skl2onnx.sklapi", "skl2onnx", "saving a model of scikit-learn")
    pipeline = need("sklearn.pipeline", "scikit-learn", "saving this model")
    steps = _steps(model)
    if len(steps) == 1:
        return model
    while hasattr(steps[-1], "steps"):
        steps = steps[:-1] + _steps(steps[-1])
    steps.insert(len(steps) - 1, sklapi.CastTransformer())
    return pipeline.Pipeline([(f"step{i}", step) for i, step in enumerate(steps)])


def _impute_doubles(onnx: Any, model: Any) -> None:
    """Replace the operator Imputer, which no engine has for doubles, by a choice between two values."""
    np = need("numpy", "numpy", "saving a model of scikit-learn")
    helper = need("onnx.helper", "onnx", "saving a model of scikit-learn")
    exact = [step.statistics_ for step in _all_steps(model) if hasattr(step, "statistics_") and step.statistics_.dtype.kind == "f"]
    nodes = []
    for i, node in enumerate(onnx.graph.node):
        fill = next((list(a.floats) for a in node.attribute if a.name == "imputed_value_floats"), [])
        if node.op_type != "Imputer" or not fill:
            nodes.append(node)
            continue
        fill = next((list(e) for e in exact if np.array_equal(e.astype(np.float32), np.float32(fill))), fill)
        onnx.graph.initializer.append(helper.make_tensor(f"fill{i}", 11, [1, len(fill)], fill))
        nodes.append(helper.make_node("IsNaN", [node.input[0]], [f"lacks{i}"]))
        nodes.append(helper.make_node("Where", [f"lacks{i}", f"fill{i}", node.input[0]], list(node.output)))
    del onnx.graph.node[:]
    onnx.graph.node.extend(nodes)


def _all_steps(model: Any) -> Iterator[Any]:
    """Yield the steps of a pipeline, also those inside its steps."""
    yield model
    inner = [step for _, step in getattr(model, "steps", [])] + [t[1] for t in getattr(model, "transformers_", [])]
    for step in inner:
        yield from _all_steps(step)


def _split_at_doubles(onnx: Any, last: Any) -> None:
    """Give the trees of HistGradientBoosting their thresholds as doubles, which skl2onnx makes 32-bit floats."""
    if not hasattr(last, "_predictors"):
        return
    helper = need("onnx.helper", "onnx", "saving a model of scikit-learn")
    splits = [n for trees in last._predictors for tree in trees for n in tree.nodes]
    exact = [0.0 if n["is_leaf"] else float(n["num_threshold"]) for n in splits]
    for opset in onnx.opset_import:
        opset.version = max(opset.version, OPSET_ML) if opset.domain == "ai.onnx.ml" else opset.version
    for node in [n for n in onnx.graph.node if n.op_type.startswith("TreeEnsemble")]:
        for attribute in list(node.attribute):
            if attribute.floats and attribute.name in ("nodes_values", "class_weights", "target_weights", "base_values"):
                values = exact if attribute.name == "nodes_values" else list(attribute.floats)
                name = attribute.name + "_as_tensor"
                node.attribute.remove(attribute)
                node.attribute.append(helper.make_attribute(name, helper.make_tensor(name, 11, [len(values)], values)))


def _answer_floats(onnx: Any) -> None:
    """Turn outputs of doubles into 32-bit floats, which scorers read."""
    helper = need("onnx.helper", "onnx", "saving a model of scikit-learn")
    for out in onnx.graph.output:
        if out.type.tensor_type.elem_type != 11:
            continue
        inner = out.name + "_double"
        for node in onnx.graph.node:
            names = [inner if o == out.name else o for o in node.output]
            del node.output[:]
            node.output.extend(names)
        onnx.graph.node.append(helper.make_node("Cast", [inner], [out.name], to=1))
        out.type.tensor_type.elem_type = 1


def _is_classifier(model: Any) -> bool:
    sklearn = need("sklearn.base", "scikit-learn", "saving this model")
    return bool(sklearn.is_classifier(model))


def _steps(model: Any) -> List[Any]:
    """Return the steps of a pipeline, or the model itself."""
    return [step for _, step in model.steps] if hasattr(model, "steps") else [model]


def _takes_columns(model: Any) -> bool:
    """Report whether a pipeline begins with a ColumnTransformer, which takes columns by their names."""
    first = _steps(model)[0]
    return _takes_columns(first) if hasattr(first, "steps") else type(first).__name__ == "ColumnTransformer"


def _joined(model: Any, rows: Any) -> Any:
    """Put a step before a model that makes one table of the columns, so that each column is an input."""
    compose = need("sklearn.compose", "scikit-learn", "saving this model")
    pipeline = need("sklearn.pipeline", "scikit-learn", "saving this model")
    join = compose.ColumnTransformer([("columns", "passthrough", list(rows.columns))]).fit(rows)
    return pipeline.Pipeline([("join", join), ("model", model)])


def _types(sample: Sample, double: bool) -> List[Tuple[str, Any]]:
    """Return the type of each input: texts, or numbers with a fraction, because JSON has one kind of number."""
    types = need("skl2onnx.common.data_types", "skl2onnx", "saving a model of scikit-learn")
    out = []
    for name, array in sample.arrays().items():
        width = array.shape[1] if array.ndim > 1 else 1
        number = types.DoubleTensorType if double else types.FloatTensorType
        kind = types.StringTensorType if is_text(array) else number
        out.append((name, kind([None, width])))
    return out


def _readable(model: Any) -> Any:
    """Return a pipeline whose last step its converter can read; the given one stays as it is."""
    if _boosting.library(_steps(model)[-1]) != "xgboost":
        return model
    model = copy.deepcopy(model)
    _boosting.forget_names(_steps(model)[-1])
    return model


def _register(model: Any) -> None:
    """Teach skl2onnx the boosting library that a model uses, and LinearSVC as the last step of a pipeline."""
    last = _steps(model)[-1]
    if type(last).__name__ == "LinearSVC":
        _register_linear_svc(type(last))
    if _boosting.library(last) in _boosting.LIBRARIES:
        _boosting.register(last, _is_classifier(last))


def _register_linear_svc(kind: Any) -> None:
    """Allow an option that skl2onnx gives to LinearSVC in a pipeline, and then refuses."""
    skl2onnx = need("skl2onnx", "skl2onnx", "saving this model")
    known = need("skl2onnx.common._registration", "skl2onnx", "saving this model")
    name = "SklearnLinearSVC"
    skl2onnx.update_registered_converter(kind, name, known.get_shape_calculator(name), known.get_converter(name)._fct, overwrite=True,
                                         options={o: [True, False] for o in ("nocl", "output_class_labels", "raw_scores", "zipmap")})
