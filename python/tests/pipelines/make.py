"""Random pipelines of each estimator, as Run.save exports them, with the answers of their library.

    python make.py COUNT ARCHIVE FIRST [NAME...]

The archive has COUNT pipelines of each estimator, made from the seeds FIRST and so on without those that Run.save
refuses: NAME/SEED.onnx, and NAME/SEED.json with rows and answers. refused.json has the reasons. Tidemill's engine
has to give the same answers: TestPipelines of internal/scoring/infer/native checks them.
"""

from __future__ import annotations

import copy
import json
import pathlib
import sys
import warnings
import zipfile
from typing import Any, Callable, Dict, List, Tuple

warnings.simplefilter("ignore")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src"))

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import pandas as pd  # noqa: E402
from sklearn import set_config  # noqa: E402
from sklearn import (calibration, cluster, compose, cross_decomposition, decomposition, discriminant_analysis, ensemble, feature_extraction,  # noqa: E402
                     feature_selection, gaussian_process, impute, linear_model, mixture, multiclass, naive_bayes, neighbors, neural_network,
                     pipeline, preprocessing, svm, tree)

from tidemill import _export, _sample, _save  # noqa: E402

TRAINED, ASKED = 80, 8  # rows
TRIES = 20  # seeds for each pipeline, because Run.save refuses some
Made = Callable[["Random"], Any]


class Random:
    """Random hyperparameters and data."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed

    def of(self, *choices: Any) -> Any:
        """Return one of some values."""
        return choices[self.rng.integers(len(choices))]

    def whole(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def between(self, least: float, most: float) -> float:
        """Return a number, spread evenly over the powers of ten."""
        return float(10 ** self.rng.uniform(np.log10(least), np.log10(most)))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)


def trees(r: Random, **more: Any) -> Dict[str, Any]:
    return {"n_estimators": r.whole(1, 12), "max_depth": r.of(2, 3, 5, None), "random_state": r.seed, **more}


def boosted(r: Random, **more: Any) -> Dict[str, Any]:
    return {"n_estimators": r.whole(1, 12), "max_depth": r.whole(1, 4), "learning_rate": r.between(0.03, 0.5), "random_state": r.seed, **more}


def leaves(r: Random) -> Dict[str, Any]:
    return {"max_depth": r.of(2, 3, 5, None), "min_samples_leaf": r.whole(1, 5), "random_state": r.seed}


def kernel(r: Random) -> Dict[str, Any]:
    return {"C": r.between(0.1, 10), "kernel": r.of("rbf", "linear", "poly", "sigmoid"), "gamma": r.of("scale", "auto", 0.1), "degree": r.whole(2, 4), "max_iter": 2000}


def near(r: Random) -> Dict[str, Any]:
    return {"n_neighbors": r.whole(1, 8), "weights": r.of("uniform", "distance")}


def network(r: Random) -> Dict[str, Any]:
    return {"hidden_layer_sizes": r.of((4,), (8, 4), (16,)), "activation": r.of("relu", "tanh", "logistic", "identity"), "max_iter": 15, "random_state": r.seed}


def lightgbm(name: str) -> Made:
    def make(r: Random) -> Any:
        import lightgbm
        return getattr(lightgbm, name)(verbose=-1, n_jobs=1, num_leaves=r.whole(3, 15), min_child_samples=r.whole(1, 10), **boosted(r))
    return make


def xgboost(name: str) -> Made:
    def make(r: Random) -> Any:
        import xgboost
        return getattr(xgboost, name)(n_jobs=1, reg_lambda=r.between(0.1, 10), **boosted(r))
    return make


def catboost(name: str) -> Made:
    def make(r: Random) -> Any:
        import catboost
        return getattr(catboost, name)(n_estimators=r.whole(1, 12), depth=r.whole(1, 4), learning_rate=r.between(0.03, 0.5), random_state=r.seed,
                                       verbose=False, allow_writing_files=False, thread_count=1)
    return make


def outputs(r: Random) -> Dict[str, Any]:
    return {"alpha": r.between(1e-3, 1)}


CLASSIFIERS: Dict[str, Made] = {
    "AdaBoostClassifier": lambda r: ensemble.AdaBoostClassifier(n_estimators=r.whole(1, 8), random_state=r.seed),
    "BaggingClassifier": lambda r: ensemble.BaggingClassifier(n_estimators=r.whole(1, 6), random_state=r.seed),
    "BernoulliNB": lambda r: naive_bayes.BernoulliNB(alpha=r.between(0.01, 2), binarize=r.of(0.0, 0.5)),
    "CalibratedClassifierCV": lambda r: calibration.CalibratedClassifierCV(linear_model.LogisticRegression(), cv=2, method=r.of("sigmoid", "isotonic")),
    "ComplementNB": lambda r: naive_bayes.ComplementNB(alpha=r.between(0.1, 2)),
    "DecisionTreeClassifier": lambda r: tree.DecisionTreeClassifier(**leaves(r)),
    "ExtraTreeClassifier": lambda r: tree.ExtraTreeClassifier(**leaves(r)),
    "ExtraTreesClassifier": lambda r: ensemble.ExtraTreesClassifier(**trees(r)),
    "GaussianNB": lambda r: naive_bayes.GaussianNB(var_smoothing=r.between(1e-9, 1e-3)),
    "GradientBoostingClassifier": lambda r: ensemble.GradientBoostingClassifier(**boosted(r)),
    "HistGradientBoostingClassifier": lambda r: ensemble.HistGradientBoostingClassifier(max_iter=r.whole(1, 8), min_samples_leaf=r.whole(2, 20), random_state=r.seed),
    "KNeighborsClassifier": lambda r: neighbors.KNeighborsClassifier(**near(r)),
    "LinearDiscriminantAnalysis": lambda r: discriminant_analysis.LinearDiscriminantAnalysis(),
    "LinearSVC": lambda r: svm.LinearSVC(C=r.between(0.01, 10)),
    "LogisticRegression": lambda r: linear_model.LogisticRegression(C=r.between(0.01, 10), fit_intercept=r.chance(0.8)),
    "LogisticRegressionCV": lambda r: linear_model.LogisticRegressionCV(Cs=2, cv=2),
    "MLPClassifier": lambda r: neural_network.MLPClassifier(**network(r)),
    "MultinomialNB": lambda r: naive_bayes.MultinomialNB(alpha=r.between(0.01, 2)),
    "NuSVC": lambda r: svm.NuSVC(nu=r.between(0.05, 0.2), max_iter=2000, kernel=r.of("rbf", "linear"), probability=r.chance(0.5), random_state=r.seed),
    "OneVsOneClassifier": lambda r: multiclass.OneVsOneClassifier(linear_model.LogisticRegression(C=r.between(0.01, 10))),
    "OneVsRestClassifier": lambda r: multiclass.OneVsRestClassifier(linear_model.LogisticRegression(C=r.between(0.01, 10))),
    "Perceptron": lambda r: linear_model.Perceptron(alpha=r.between(1e-5, 1e-2), random_state=r.seed),
    "QuadraticDiscriminantAnalysis": lambda r: discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=r.between(0.01, 0.5)),
    "RadiusNeighborsClassifier": lambda r: neighbors.RadiusNeighborsClassifier(radius=50.0, weights=r.of("uniform", "distance")),
    "RandomForestClassifier": lambda r: ensemble.RandomForestClassifier(**trees(r)),
    "RidgeClassifier": lambda r: linear_model.RidgeClassifier(alpha=r.between(0.01, 10)),
    "SGDClassifier": lambda r: linear_model.SGDClassifier(loss=r.of("log_loss", "hinge", "modified_huber"), alpha=r.between(1e-4, 1e-1), random_state=r.seed),
    "SVC": lambda r: svm.SVC(probability=r.chance(0.6), random_state=r.seed, **kernel(r)),
    "StackingClassifier": lambda r: ensemble.StackingClassifier([("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=2))], cv=2),
    "VotingClassifier": lambda r: ensemble.VotingClassifier([("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=2))],
                                                            voting=r.of("hard", "soft"), flatten_transform=False),
    "LGBMClassifier": lightgbm("LGBMClassifier"),
    "XGBClassifier": xgboost("XGBClassifier"),
    "CatBoostClassifier": catboost("CatBoostClassifier"),
}

REGRESSORS: Dict[str, Made] = {
    "ARDRegression": lambda r: linear_model.ARDRegression(),
    "AdaBoostRegressor": lambda r: ensemble.AdaBoostRegressor(n_estimators=r.whole(1, 8), random_state=r.seed),
    "BaggingRegressor": lambda r: ensemble.BaggingRegressor(n_estimators=r.whole(1, 6), random_state=r.seed),
    "BayesianRidge": lambda r: linear_model.BayesianRidge(),
    "DecisionTreeRegressor": lambda r: tree.DecisionTreeRegressor(**leaves(r)),
    "ElasticNet": lambda r: linear_model.ElasticNet(l1_ratio=r.between(0.1, 0.9), **outputs(r)),
    "ExtraTreeRegressor": lambda r: tree.ExtraTreeRegressor(**leaves(r)),
    "ExtraTreesRegressor": lambda r: ensemble.ExtraTreesRegressor(**trees(r)),
    "GammaRegressor": lambda r: linear_model.GammaRegressor(**outputs(r)),
    "GaussianProcessRegressor": lambda r: gaussian_process.GaussianProcessRegressor(
        gaussian_process.kernels.RBF(r.between(0.5, 5)), alpha=r.between(1e-2, 1), optimizer=None),
    "GradientBoostingRegressor": lambda r: ensemble.GradientBoostingRegressor(**boosted(r)),
    "HistGradientBoostingRegressor": lambda r: ensemble.HistGradientBoostingRegressor(max_iter=r.whole(1, 8), min_samples_leaf=r.whole(2, 20), random_state=r.seed),
    "HuberRegressor": lambda r: linear_model.HuberRegressor(alpha=r.between(1e-4, 1)),
    "KNeighborsRegressor": lambda r: neighbors.KNeighborsRegressor(**near(r)),
    "Lars": lambda r: linear_model.Lars(n_nonzero_coefs=r.whole(1, 5)),
    "Lasso": lambda r: linear_model.Lasso(**outputs(r)),
    "LassoLars": lambda r: linear_model.LassoLars(**outputs(r)),
    "LinearRegression": lambda r: linear_model.LinearRegression(),
    "LinearSVR": lambda r: svm.LinearSVR(C=r.between(0.1, 10)),
    "MLPRegressor": lambda r: neural_network.MLPRegressor(**network(r)),
    "NuSVR": lambda r: svm.NuSVR(nu=r.between(0.1, 0.9), **kernel(r)),
    "OrthogonalMatchingPursuit": lambda r: linear_model.OrthogonalMatchingPursuit(),
    "PLSRegression": lambda r: cross_decomposition.PLSRegression(n_components=r.whole(1, 2)),
    "PassiveAggressiveRegressor": lambda r: linear_model.PassiveAggressiveRegressor(random_state=r.seed),
    "PoissonRegressor": lambda r: linear_model.PoissonRegressor(**outputs(r)),
    "QuantileRegressor": lambda r: linear_model.QuantileRegressor(**outputs(r)),
    "RANSACRegressor": lambda r: linear_model.RANSACRegressor(random_state=r.seed, min_samples=0.5),
    "RadiusNeighborsRegressor": lambda r: neighbors.RadiusNeighborsRegressor(radius=50.0, weights=r.of("uniform", "distance")),
    "RandomForestRegressor": lambda r: ensemble.RandomForestRegressor(**trees(r)),
    "Ridge": lambda r: linear_model.Ridge(alpha=r.between(0.01, 10)),
    "SGDRegressor": lambda r: linear_model.SGDRegressor(alpha=r.between(1e-4, 1e-1), random_state=r.seed),
    "SVR": lambda r: svm.SVR(**kernel(r)),
    "StackingRegressor": lambda r: ensemble.StackingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=2))], cv=2),
    "TheilSenRegressor": lambda r: linear_model.TheilSenRegressor(random_state=r.seed, max_subpopulation=20, max_iter=10),
    "TweedieRegressor": lambda r: linear_model.TweedieRegressor(power=r.of(0, 1, 1.5, 2), **outputs(r)),
    "VotingRegressor": lambda r: ensemble.VotingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=3))]),
    "LGBMRegressor": lightgbm("LGBMRegressor"),
    "XGBRegressor": xgboost("XGBRegressor"),
    "CatBoostRegressor": catboost("CatBoostRegressor"),
}

# Models without a target: their answer is a class or a number.
OTHERS: Dict[str, Made] = {
    "IsolationForest": lambda r: ensemble.IsolationForest(n_estimators=r.whole(1, 12), random_state=r.seed),
    "KMeans": lambda r: cluster.KMeans(r.whole(2, 5), n_init=1, random_state=r.seed),
    "MiniBatchKMeans": lambda r: cluster.MiniBatchKMeans(r.whole(2, 5), n_init=1, random_state=r.seed),
    "OneClassSVM": lambda r: svm.OneClassSVM(kernel=r.of("rbf", "linear"), nu=r.between(0.1, 0.5)),
    "BayesianGaussianMixture": lambda r: mixture.BayesianGaussianMixture(n_components=r.whole(1, 3), random_state=r.seed),
    "GaussianMixture": lambda r: mixture.GaussianMixture(r.whole(1, 3), random_state=r.seed),
    "SGDOneClassSVM": lambda r: linear_model.SGDOneClassSVM(nu=r.between(0.1, 0.5), random_state=r.seed),
}

# Steps that many pipelines begin with. Under these names they come before a logistic regression.
FRONT = ["SimpleImputer", "OneHotEncoder", "OrdinalEncoder"]

# Steps before a logistic regression. All other pipelines begin with some of the first five kinds.
STEPS: Dict[str, Made] = {
    "MaxAbsScaler": lambda r: preprocessing.MaxAbsScaler(),
    "MinMaxScaler": lambda r: preprocessing.MinMaxScaler(r.of((0, 1), (-1, 1)), clip=r.chance(0.5)),
    "Normalizer": lambda r: preprocessing.Normalizer(r.of("l1", "l2", "max")),
    "RobustScaler": lambda r: preprocessing.RobustScaler(with_centering=r.chance(0.5)),
    "StandardScaler": lambda r: preprocessing.StandardScaler(with_mean=r.chance(0.8), with_std=r.chance(0.8)),
    "Binarizer": lambda r: preprocessing.Binarizer(threshold=r.of(0.0, 0.5)),
    "GaussianRandomProjection": lambda r: __import__("sklearn.random_projection").random_projection.GaussianRandomProjection(3, random_state=r.seed),
    "IncrementalPCA": lambda r: decomposition.IncrementalPCA(r.whole(1, 2)),
    "KBinsDiscretizer": lambda r: preprocessing.KBinsDiscretizer(r.whole(2, 4), encode=r.of("ordinal", "onehot-dense"), strategy=r.of("uniform", "quantile")),
    "KernelPCA": lambda r: decomposition.KernelPCA(2, kernel=r.of("linear", "rbf", "poly"), random_state=r.seed),
    "PCA": lambda r: decomposition.PCA(r.whole(1, 2), whiten=r.chance(0.3)),
    "PolynomialFeatures": lambda r: preprocessing.PolynomialFeatures(r.whole(1, 3), interaction_only=r.chance(0.3), include_bias=r.chance(0.5)),
    "PowerTransformer": lambda r: preprocessing.PowerTransformer(standardize=r.chance(0.5)),
    "QuantileTransformer": lambda r: preprocessing.QuantileTransformer(n_quantiles=r.whole(5, 20), random_state=r.seed),
    "SelectFromModel": lambda r: feature_selection.SelectFromModel(linear_model.LogisticRegression()),
    "SelectKBest": lambda r: feature_selection.SelectKBest(k=r.whole(1, 2)),
    "SelectPercentile": lambda r: feature_selection.SelectPercentile(percentile=r.whole(40, 90)),
    "TruncatedSVD": lambda r: decomposition.TruncatedSVD(1, random_state=r.seed),
    "VarianceThreshold": lambda r: feature_selection.VarianceThreshold(),
}

TEXTS: Dict[str, Made] = {
    "CountVectorizer": lambda r: feature_extraction.text.CountVectorizer(ngram_range=(1, r.whole(1, 3)), binary=r.chance(0.3), token_pattern="[a-zA-Z0-9_]+"),
    "TfidfVectorizer": lambda r: feature_extraction.text.TfidfVectorizer(ngram_range=(1, r.whole(1, 2)), sublinear_tf=r.chance(0.3), use_idf=r.chance(0.8),
                                                                         norm=r.of("l1", "l2", None), token_pattern="[a-zA-Z0-9_]+"),
}

POSITIVE = {"ComplementNB", "MultinomialNB", "GammaRegressor", "PoissonRegressor", "TweedieRegressor"}  # take no negative numbers
GAPS = {"HistGradientBoostingClassifier", "HistGradientBoostingRegressor", "LGBMClassifier", "LGBMRegressor", "XGBClassifier", "XGBRegressor"}  # take NaN
COUNTED = {"XGBClassifier"}  # takes classes that are counted from 0


def numbers(r: Random, n: int, columns: int) -> Any:
    """Return columns of numbers on different scales, which 32-bit floats hold exactly."""
    x = r.rng.normal(size=(n, columns)) * [r.of(1, 1, 10, 100) for _ in range(columns)] + [r.of(0, 0, 5) for _ in range(columns)]
    if r.chance(0.3):
        x[:, 0] = r.rng.integers(0, 9, n)
    return x.round(3).astype(np.float32).astype(np.float64)


def rows(r: Random, name: str) -> Tuple[pd.DataFrame, List[str], List[str]]:
    """Return random rows with the names of their columns of numbers and of texts."""
    n, wide, texts = TRAINED + ASKED, r.whole(3, 6), r.whole(1, 2) if name in FRONT[1:] else r.of(0, 0, 1, 2)
    x = pd.DataFrame(numbers(r, n, wide), columns=[f"n{i}" for i in range(wide)])
    for i in range(texts):
        x[f"t{i}"] = r.rng.choice(["red", "green", "Blue", "über", "10"][: r.whole(2, 5)], n)
    return x, [c for c in x if c[0] == "n"], [c for c in x if c[0] == "t"]


def front(r: Random, name: str, x: pd.DataFrame, numeric: List[str], texts: List[str]) -> List[Any]:
    """Put gaps and unknown categories into rows, and return the first steps, which take them."""
    steps: List[Any] = []
    if r.chance(0.4) or name == "SimpleImputer":
        x.loc[r.rng.random(len(x)) < 0.1, numeric[0]] = np.nan
        if name not in GAPS or r.chance(0.5):
            steps.append(impute.SimpleImputer(strategy=r.of("mean", "median", "most_frequent")))
    if name in POSITIVE:
        steps.append(preprocessing.MinMaxScaler(clip=True))
    elif name not in STEPS:
        scaler = r.of(None, *list(STEPS.values())[:5])
        if scaler:
            steps.append(scaler(r))
    inner = pipeline.make_pipeline(*steps) if steps else "passthrough"
    if not texts and r.chance(0.5):
        return steps
    parts = [("numbers", inner, numeric)]
    if texts:
        if name == "OneHotEncoder" or r.chance(0.7) and name != "OrdinalEncoder":
            encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
            x.loc[x.index[-1], texts[0]] = "unknown"
        else:
            encoder = preprocessing.OrdinalEncoder()
        parts.append(("texts", encoder, texts))
    return [compose.ColumnTransformer(parts)]


def targets(r: Random, name: str, x: pd.DataFrame, numeric: List[str]) -> Any:
    """Return classes or numbers that depend on the rows."""
    value = x[numeric].rank(pct=True).to_numpy() @ r.rng.normal(size=len(numeric)) + r.rng.normal(size=len(x)) / 4
    if name in REGRESSORS:
        value = (value - value.min() + 0.1) * r.of(1, 1, 10)
        return value.round(3)
    classes = r.of(2, 2, 3, 4)
    kinds = (pd.Series(value).rank(pct=True) * (classes - 1e-9)).astype(int).clip(0, classes - 1).to_numpy()
    if name in COUNTED or r.chance(0.5):
        return kinds
    return np.array(["no", "yes", "maybe", "Later"])[kinds]


WORDS = "where is my parcel card lost I want MONEY back send the a the Order_7 now please 42".split()


def sentences(r: Random) -> Tuple[List[str], Any]:
    texts = [" ".join(r.rng.choice(WORDS, r.whole(1, 8))) + r.of("", "!", " ?", ", ok") for _ in range(TRAINED + ASKED)]
    return texts, np.array(["parcel" in t or "card" in t for t in texts]).astype(int)


def make(name: str, seed: int) -> Tuple[Any, Any]:
    """Return a fitted pipeline and the rows that it is asked."""
    r = Random(seed)
    if name in TEXTS:
        said, y = sentences(r)
        model = pipeline.make_pipeline(TEXTS[name](r), linear_model.LogisticRegression(C=r.between(0.1, 10)))
        return model.fit(said[:TRAINED], y[:TRAINED]), np.array(said[TRAINED:], dtype=object)
    x, numeric, texts = rows(r, name)
    y = targets(r, name, x, numeric)
    steps = front(r, name, x, numeric, texts)
    last = {**CLASSIFIERS, **REGRESSORS, **OTHERS}.get(name)
    if name in STEPS:
        steps.append(STEPS[name](r))
    steps.append(last(r) if last else linear_model.LogisticRegression())
    model = pipeline.make_pipeline(*steps) if len(steps) > 1 else steps[0]
    data = x if texts or hasattr(steps[0], "transformers") else x.to_numpy()
    model.fit(data[:TRAINED], y[:TRAINED])
    return model, data[TRAINED:]


def rounded(model: Any) -> Any:
    """Return a support vector machine, or a pipeline with it, with the numbers of its file, which are 32-bit numbers in ONNX."""
    model = copy.deepcopy(model)
    last = model[-1] if hasattr(model, "steps") else model
    for name in ("support_vectors_", "_dual_coef_", "_intercept_"):
        setattr(last, name, getattr(last, name).astype(np.float32).astype(np.float64))
    return model


def saved(name: str, model: Any, sample: Any, precisions: List[bool]) -> Tuple[Any, bytes, bool]:
    """Export a pipeline as Run.save does: in the first precision in which ONNX Runtime has the library's answers.

    Run.save takes no clusters and no outliers, so there is no check of these.
    """
    why: Exception = ValueError("no precision is given")
    for double in precisions:
        try:
            made = _export.export(model, sample, double)
            if name not in OTHERS:
                return made, _save._checked(made, sample, None)[0], double
            _save._finish(made.onnx)
            return made, made.onnx.SerializeToString(), double
        except Exception as e:
            why = e
    raise why


def described(made: Any, onnx: bytes, sample: Any, model: Any, double: bool) -> Dict[str, Any]:
    """Return the rows and answers of a pipeline for JSON, which has no NaN, and ONNX Runtime's answers."""
    given = {}
    for name, array in sample.arrays().items():
        values = array.reshape(len(array), -1)
        if _sample.is_text(array):
            given[name] = {"texts": [str(v) for v in values.ravel()]}
        else:
            given[name] = {"numbers": [None if v != v else float(v) for v in values.ravel()]}
    scores = made.labels is not None or hasattr(model, "predict_proba")
    want = [] if made.numbers is None else np.asarray(made.numbers, dtype=np.float64).ravel()
    return {"inputs": given, "rows": sample.rows, "labels": made.predicted, "numbers": [float(v) for v in want], "double": double,
            "scores": scores, "classifier": made.labels is not None, "runtime": runtime(onnx, sample, scores, len(want))}


def runtime(onnx: bytes, sample: Any, scores: bool, size: int) -> List[float]:
    """Return the numbers that ONNX Runtime answers; none if it lacks an operator, such as SVMRegressor for doubles."""
    try:
        session = ort.InferenceSession(onnx, providers=["CPUExecutionProvider"])
        answers = session.run(None, sample.feeds([(i.name, i.type, i.shape) for i in session.get_inputs()]))
    except Exception:
        return []
    numbers = [a for a in (reversed(answers) if scores else answers) if a.size == size and a.dtype.kind in "fi"]
    return [float(v) for v in numbers[0].ravel()] if numbers else []


def main(count: int, path: str, first: int, only: List[str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in only or NAMES:
            refused: Dict[str, int] = {}
            done = 0
            for seed in range(first, first + TRIES * count):
                if done == count:
                    break
                try:
                    model, asked = make(name, seed)
                    if name in ("NuSVC", "OneClassSVM", "SVC") and (rounded(model).predict(asked) != model.predict(asked)).any():
                        raise ValueError("the 32 bits of its file put a row on the other side")
                    sample = _sample.Sample(asked)
                    exported, onnx, double = saved(name, model, sample, [False, True] if seed % 2 else [True, False])
                except Exception as e:  # the exporter lacks a case of this estimator, or Run.save refuses its file
                    why = f"{type(e).__name__}: {e}"[:200]
                    refused[why] = refused.get(why, 0) + 1
                    continue
                archive.writestr(f"{name}/{seed:04}.onnx", onnx)
                archive.writestr(f"{name}/{seed:04}.json", json.dumps(described(exported, onnx, sample, model, double)))
                done += 1
            archive.writestr(f"{name}/refused.json", json.dumps(refused))


NAMES = [*CLASSIFIERS, *REGRESSORS, *OTHERS, *FRONT, *STEPS, *TEXTS]

if __name__ == "__main__":
    set_config(skip_parameter_validation=True)
    ort.set_default_logger_severity(4)
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
