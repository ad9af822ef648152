"""Models of LightGBM, XGBoost and CatBoost as steps that skl2onnx can write."""

from __future__ import annotations

from typing import Any, Callable

from ._onnx import OPSET_ML, SaveError
from ._values import need

LIBRARIES = ("lightgbm", "xgboost", "catboost")


def library(model: Any) -> str:
    """Return the name of the library that a model is from."""
    return type(model).__module__.partition(".")[0]


def register(model: Any, is_class: bool) -> None:
    """Teach skl2onnx a model of these libraries."""
    if library(model) == "catboost":
        _check_catboost(model)
    skl2onnx = need("skl2onnx", "skl2onnx", "saving this model")
    shapes = need("skl2onnx.common.shape_calculator", "skl2onnx", "saving this model")
    shape = shapes.calculate_linear_classifier_output_shapes if is_class else shapes.calculate_linear_regressor_output_shapes
    options = {"nocl": [True, False], "zipmap": [True, False, "columns"], "raw_scores": [True, False]} if is_class else None
    parser = _label_and_scores if is_class and library(model) == "catboost" else None  # the class lacks the mixin by which skl2onnx knows classifiers
    skl2onnx.update_registered_converter(type(model), _alias(model), shape, _converter(library(model)), options=options, parser=parser)


def _alias(model: Any) -> str:
    return f"Tidemill{type(model).__name__}"


def _label_and_scores(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare the outputs of a classifier. Its shape function corrects the type of the label."""
    types = need("skl2onnx.common.data_types", "skl2onnx", "saving this model")
    operator = scope.declare_local_operator(_alias(model), model)
    operator.inputs = inputs
    operator.outputs.append(scope.declare_local_variable("label", types.StringTensorType()))
    operator.outputs.append(scope.declare_local_variable("probabilities", types.FloatTensorType()))
    return operator.outputs


def _converter(of: str) -> Callable[..., None]:
    """Return the function that writes a model of a library as nodes of ONNX."""
    if of == "catboost":
        return _catboost
    module = {"lightgbm": "LightGbm", "xgboost": "XGBoost"}[of]
    found = need(f"onnxmltools.convert.{of}.operator_converters.{module}", "onnxmltools", f"saving a model of {of}")
    converter: Callable[..., None] = getattr(found, f"convert_{of}")
    return converter


def forget_names(model: Any) -> None:
    """Remove the names of columns from a model of XGBoost, because its converter refuses them."""
    booster = model.get_booster()
    booster.feature_names, booster.feature_types = None, None


def _catboost(scope: Any, operator: Any, container: Any) -> None:
    """Write the trees of the ONNX file that CatBoost makes by itself.

    The file's second node turns the scores into a map, which scorers do not read. Its metadata have
    the time of the training, so that the same training would make another file.
    """
    helper = need("onnx.helper", "onnx", "saving a model of CatBoost")
    trees = need("catboost.utils", "catboost", "saving a model of CatBoost").convert_to_onnx_object(operator.raw_operator).graph.node[0]
    container.add_node(trees.op_type, [operator.inputs[0].full_name], [o.full_name for o in operator.outputs], op_domain="ai.onnx.ml",
                       op_version=OPSET_ML, name=scope.get_unique_operator_name("CatBoost"),
                       **{a.name: helper.get_attribute_value(a) for a in trees.attribute})


def _check_catboost(model: Any) -> None:
    """Refuse what CatBoost cannot write as ONNX, with a way out."""
    columns = [str(model.feature_names_[i]) for i in model.get_cat_feature_indices()]
    if columns:
        raise SaveError(f"CatBoost cannot write its own categorical columns ({', '.join(columns)}) as ONNX: "
                        "leave out cat_features, and put a OneHotEncoder before the model in a pipeline")
    kind = getattr(getattr(model, "classes_", None), "dtype", None)
    if kind is not None and kind.kind in "bf" and len(model.classes_):
        raise SaveError(f"CatBoost cannot write classes of type {kind} as ONNX: train with texts or integers, such as y.astype(int)")
