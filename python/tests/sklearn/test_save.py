"""Models of scikit-learn: saved, checked, asked, and served by a real tidemill up."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import unittest
import warnings
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (AdaBoostClassifier, ExtraTreesClassifier, GradientBoostingClassifier, GradientBoostingRegressor,
                              HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet, LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
from upped import Up, eventually  # noqa: E402

from tidemill import Champion, Run, SaveError  # noqa: E402
from tidemill import _card  # noqa: E402

warnings.simplefilter("ignore")


def payments(n: int = 1000) -> "tuple[pd.DataFrame, Any]":
    """Return rows with gaps, numbers, texts and booleans, and a class for each."""
    rng = np.random.default_rng(7)
    x = pd.DataFrame({"amount": rng.gamma(2, 50, n).round(2), "age of card": rng.integers(0, 60, n), "country": rng.choice(["de", "fr", "us"], n),
                      "kind": rng.choice(["a", "b"], n), "known": rng.random(n) > 0.5})
    x.loc[rng.random(n) < 0.05, "amount"] = np.nan
    return x, np.where((x["amount"].fillna(50) > 100) ^ (x["country"] == "de"), "fraud", "fine")


def pipeline(model: Any) -> Any:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return make_pipeline(ColumnTransformer([("numbers", numbers, ["amount", "age of card"]),
                                            ("classes", OneHotEncoder(handle_unknown="ignore"), ["country", "kind", "known"])]), model)


class Outcomes(unittest.TestCase):
    """The input of a recipe with outcomes."""

    def test_a_missing_answer_of_pandas(self) -> None:
        with tempfile.TemporaryDirectory() as out:
            Run({"TIDEMILL_OUT": out}).predictions(pd.Series([1, 2], dtype="Int64"), pd.Series([1, None], dtype="Int64"))
            self.assertEqual((pathlib.Path(out) / "predictions.csv").read_text(), "truth,predicted\n1,1\n2,\n")

    def test_a_frame_and_parquet(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "in" / "history" / "outcomes.ndjson"
            file.parent.mkdir(parents=True)
            of = '"outcome":{"key":"shop-7","version":3,"label":"fine","score":0.9,"scores":{"fine":0.9,"fraud":0.1},"truth":"%s"}}\n'
            file.write_text('{"event":{"id":"a","data":{"amount":12.5,"card":{"age":3}}},"truth":"fine",' + of % "fine"
                            + '{"event":null,"truth":"fraud",' + of % "fraud", encoding="utf-8")
            frame = Run({"TIDEMILL_IN": str(file.parents[1])}).inputs.outcomes("history")
            self.assertEqual(list(frame["truth"]), ["fine", "fraud"])
            self.assertEqual(list(frame["label"]), ["fine", "fine"])
            self.assertEqual(list(frame["scores.fraud"]), [0.1, 0.1])
            self.assertEqual(frame["data.amount"][0], 12.5)
            self.assertEqual(frame["data.card.age"][0], 3)
            self.assertTrue(frame.loc[1, ["data.amount", "data.card.age"]].isna().all())
            frame.to_parquet(pathlib.Path(folder) / "history.parquet")
            pd.testing.assert_frame_equal(pd.read_parquet(pathlib.Path(folder) / "history.parquet"), frame)


class Saved(unittest.TestCase):
    """Each test has a folder for the output."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.out = pathlib.Path(temporary.name)
        self.run_ = Run({"TIDEMILL_RUN": "r1", "TIDEMILL_OUT": temporary.name})

    def champion(self) -> Champion:
        return Champion(self.out)

    def card(self) -> dict:
        return _card.read(self.out / "model.yaml")

    def test_classifiers_in_a_pipeline(self) -> None:
        x, y = payments()
        for model in (LogisticRegression(), RandomForestClassifier(20), ExtraTreesClassifier(20), GradientBoostingClassifier(n_estimators=20),
                      HistGradientBoostingClassifier(max_iter=20), DecisionTreeClassifier(), AdaBoostClassifier(n_estimators=10), LinearSVC(),
                      SVC(), SGDClassifier(), RidgeClassifier(), KNeighborsClassifier(), GaussianNB(), MLPClassifier(max_iter=50)):
            with self.subTest(type(model).__name__):
                fitted = pipeline(model).fit(x, y)
                self.run_.save(fitted, x)
                np.testing.assert_array_equal(self.champion().predict(x), fitted.predict(x))

    def test_regressors_in_a_pipeline(self) -> None:
        x, _ = payments()
        y = x["amount"].fillna(50) * 2 + x["age of card"]
        for model in (LinearRegression(), Ridge(), ElasticNet(), RandomForestRegressor(20), GradientBoostingRegressor(n_estimators=20),
                      HistGradientBoostingRegressor(max_iter=20), SVR()):
            with self.subTest(type(model).__name__):
                fitted = pipeline(model).fit(x, y)
                self.run_.save(fitted, x)
                np.testing.assert_allclose(self.champion().predict(x), fitted.predict(x), rtol=1e-3, atol=1e-2)

    def test_card_of_a_classifier(self) -> None:
        x, y = payments()
        self.run_.save(pipeline(LogisticRegression()).fit(x, y), x)
        text = (self.out / "model.yaml").read_text()
        self.assertIn('labels: ["fine", "fraud"]\ngolden: {"inputs": {"amount": [[', text)
        self.assertIn('"age of card": [[', text)
        self.assertEqual(sorted(os.listdir(self.out)), ["model.onnx", "model.yaml"])

    def test_plain_columns_become_inputs(self) -> None:
        x, y = payments()
        numbers = x[["amount", "age of card"]].fillna(0)
        fitted = make_pipeline(StandardScaler(), RandomForestClassifier(10)).fit(numbers, y)
        self.run_.save(fitted, numbers)
        self.assertEqual(self.champion().predict({"age of card": [3], "amount": [70]}),
                         fitted.predict(pd.DataFrame({"amount": [70], "age of card": [3]})).tolist())
        with self.assertRaisesRegex(ValueError, "lack the model's inputs age of card; they have amount"):
            self.champion().predict({"amount": [1]})

    def test_columns_that_no_step_reads_are_no_inputs(self) -> None:
        x, y = payments()
        fitted = make_pipeline(ColumnTransformer([("n", StandardScaler(), ["age of card"])]), LogisticRegression()).fit(x, y)
        self.run_.save(fitted, x)
        self.assertEqual(len(self.champion().predict({"age of card": [1, 2]})), 2)

    def test_arrays_and_given_labels(self) -> None:
        x = np.random.default_rng(1).normal(size=(200, 3))
        y = (x[:, 0] > 0).astype(int)
        fitted = LogisticRegression().fit(x, y)
        self.run_.save(fitted, x, labels=["no", "yes"], name="numbers")
        np.testing.assert_array_equal(self.champion().predict(x), np.where(fitted.predict(x), "yes", "no"))
        self.assertIn('"numbers": [[', (self.out / "model.yaml").read_text())
        np.testing.assert_allclose(self.champion().scores(x), fitted.predict_proba(x), atol=1e-3)
        with self.assertRaisesRegex(SaveError, "3 labels"):
            self.run_.save(fitted, x, labels=["a", "b", "c"])

    def test_classes_that_are_no_texts(self) -> None:
        x, y = payments()
        for classes, labels in ((y == "fraud", ["false", "true"]), (np.where(y == "fraud", 7.0, 3.0), ["3", "7"])):
            self.run_.save(pipeline(LogisticRegression()).fit(x, classes), x)
            self.assertEqual(self.card()["labels"], labels)

    def test_a_search_saves_its_best(self) -> None:
        x, y = payments()
        search = GridSearchCV(pipeline(LogisticRegression()), {"logisticregression__C": [0.1, 1]}).fit(x, y)
        self.run_.save(search, x)
        np.testing.assert_array_equal(self.champion().predict(x), search.predict(x))

    def test_texts(self) -> None:
        texts, y = ["where is my parcel", "my card is lost", "I want MONEY", "send the parcel"] * 5, ["order", "card", "card", "order"] * 5
        fitted = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
        self.run_.save(fitted, texts)
        self.assertIn('"text": [["', (self.out / "model.yaml").read_text())
        self.assertEqual(self.champion().predict(["the parcel", "my money"]), ["order", "card"])

    def test_a_model_that_answers_differently_is_not_saved(self) -> None:
        x, y = payments()
        fitted = pipeline(LogisticRegression()).fit(x, y)
        honest = fitted.predict_proba
        type(fitted)  # the pipeline stays of its class; only this object answers differently
        fitted.predict_proba = lambda rows: honest(rows) * 0.9
        with self.assertRaisesRegex(SaveError, "answers row 0 of the sample with .*, and the original with .*; 1000 of 1000 rows differ"):
            self.run_.save(fitted, x)
        self.assertEqual(os.listdir(self.out), [])

    def test_what_cannot_be_saved(self) -> None:
        x, y = payments()
        with self.assertRaisesRegex(TypeError, "builtins.dict cannot be saved"):
            self.run_.save({}, x)
        numbers = x[["age of card"]]
        odd = make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()).fit(numbers, y)
        with self.assertRaisesRegex(SaveError, "skl2onnx cannot turn this model into ONNX"):
            self.run_.save(odd, numbers)
        with self.assertRaisesRegex(ValueError, "no rows"):
            self.run_.save(pipeline(LogisticRegression()).fit(x, y), x[:0])
        wide = pd.DataFrame(np.zeros((10, 257)), columns=[f"c{i}" for i in range(257)])
        with self.assertRaisesRegex(SaveError, "257 inputs, and a scorer reads 256"):
            self.run_.save(Ridge().fit(wide, np.arange(10)), wide)
        self.assertEqual(os.listdir(self.out), [])

    def test_the_model_is_left_alone(self) -> None:
        x, y = payments()
        model = pipeline(RandomForestClassifier(5, random_state=1))
        fitted = clone(model).fit(x, y)
        before = fitted.predict_proba(x)
        self.run_.save(fitted, x)
        np.testing.assert_array_equal(fitted.predict_proba(x), before)
        self.assertEqual(len(fitted.steps), 2)


TRAINER = """
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tidemill import run

rows = run.inputs.frame("payments")
x, y = rows.drop(columns="label"), rows["label"]
columns = [("n", StandardScaler(), ["amount", "age of card"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["country"])]
columns = columns[:1] if run.key == "plain" else columns
last = LogisticRegression() if run.key in ("linear", "plain") else RandomForestClassifier(10, random_state=1)
model = make_pipeline(ColumnTransformer(columns), last).fit(x[::2], y[::2])
test = x[1::2]
champion = run.champion.predict(test) if run.champion else None
run.predictions(y[1::2], model.predict(test), champion=champion)
run.metrics(rows=len(rows))
run.save(model, test)
"""

CONFIG = f"""
version: 1
recipes:
  fraud:
    when: {{type: new-data, where: "dataset LIKE 'pay/%'", debounce: 300ms}}
    inputs: {{payments: "pay/{{key}}"}}
    run: {{dir: trainer, command: ['{sys.executable}', train.py], attempts: 1}}
    makes: {{model: "fraud/{{key}}"}}
    gate: [metrics.accuracy >= 0.5, metrics.accuracy >= champion.metrics.accuracy]
streams:
  payments: {{types: [payment]}}
  scored:
  others:
scorers:
  fraud: {{from: payments, to: scored, model: "fraud/{{key}}"}}
  fraud-go: {{from: payments, to: others, model: fraud/plain, engine: go}}
"""


class Served(unittest.TestCase):
    """Saved models, as a scorer serves them: fields of events are inputs by their names."""

    def test_a_scorer_answers_as_the_model(self) -> None:
        up = Up({"tidemill.yaml": CONFIG, "trainer/train.py": TRAINER})
        self.addCleanup(up.stop)
        client = up.start()
        x, y = payments(300)
        x = x.fillna(50)
        for key in ("linear", "trees", "plain"):
            client.data.put(f"pay/{key}", x.assign(label=y))
        eventually("three champions", lambda: len([m for m in client.models.list("fraud/") if m["champion"]]) == 3 or self.fail_early(client), 180)
        run = client.runs.start("fraud", "trees")
        self.assertEqual(client.runs.wait(run, 180)["state"], "succeeded", "\n".join(client.runs.log(run)))
        measured = eventually("the version of the run", lambda: self.measured(client, run))
        self.assertEqual(measured["metrics"]["accuracy"], measured["champion"]["metrics"]["accuracy"])  # type: ignore[index]
        rows = x.head(50).drop(columns=["kind", "known"]).to_dict("records")
        for key in ("linear", "trees"):
            client.publish([{"type": "payment", "subject": key, "data": row} for row in rows])
        scored = list(client.tail("scored", "beginning", limit=100))
        for key in ("linear", "trees"):
            got = [t.event["data"]["label"] for t in scored if t.event["subject"] == key]
            self.assertEqual(got, [client.score("fraud", row, key)["label"] for row in rows])
            self.assertGreater(sum(a == b for a, b in zip(got, y)), 30)
        self.assertEqual([client.score("fraud-go", row, "plain") for row in rows[:5]],
                         [{**client.score("fraud", row, "plain"), "scorer": "fraud-go"} for row in rows[:5]])

    def measured(self, client: Any, run: str) -> Any:
        """A version comes a moment after the success of its run. Until then the newest is the one of the run before."""
        newest = client.models.version("fraud/trees", "newest")
        return newest.get("measured") if newest["run"] == run else None

    def fail_early(self, client: Any) -> bool:
        for run in client.runs.list(state="failed"):
            self.fail("\n".join(client.runs.log(run["id"])))
        return False


if __name__ == "__main__":
    unittest.main()
