"""Models of LightGBM, XGBoost and CatBoost: equal to their library on 1,000 rows, and served by a real tidemill up."""

from __future__ import annotations

import pathlib
import sys
import tempfile
import unittest
import warnings
from typing import Optional

import numpy as np
import pandas as pd
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
from upped import Up, eventually  # noqa: E402

from tidemill import Champion, Client, Run, SaveError, TidemillError  # noqa: E402

warnings.simplefilter("ignore")

NUMBERS = ["amount", "age of card"]
QUIET = {"n_estimators": 30, "verbose": False, "allow_writing_files": False}  # of CatBoost


def payments() -> pd.DataFrame:
    """Return 1,000 rows with gaps and classes."""
    rng = np.random.default_rng(3)
    x = pd.DataFrame({"amount": rng.gamma(2, 50, 1000).round(2), "age of card": rng.integers(0, 60, 1000),
                      "country": rng.choice(["de", "fr", "us"], 1000)})
    x.loc[rng.random(1000) < 0.05, "amount"] = np.nan
    return x


def pipeline(model: object) -> object:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    classes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(ColumnTransformer([("n", numbers, NUMBERS), ("c", classes, ["country"])]), model)


class Saved(unittest.TestCase):
    """Each test has a folder for the output."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.run_ = Run({"TIDEMILL_RUN": "r1", "TIDEMILL_OUT": temporary.name})
        self.out = pathlib.Path(temporary.name)

    @property
    def champion(self) -> Champion:
        """The files as they are now."""
        return Champion(self.out)

    def test_classifiers(self) -> None:
        x = payments()
        two = (x["amount"].fillna(50) > 100).astype(int)
        three = np.digitize(x["age of card"], [20, 40])
        for make in (lambda: LGBMClassifier(n_estimators=30, verbose=-1), lambda: XGBClassifier(n_estimators=30),
                     lambda: CatBoostClassifier(**QUIET)):
            for y in (two, three):
                for model, rows in ((make(), x[NUMBERS]), (pipeline(make()), x)):
                    with self.subTest(type(make()).__name__, classes=len(set(y)), columns=len(rows.columns)):
                        model.fit(rows, y)
                        self.run_.save(model, rows)
                        np.testing.assert_array_equal(self.champion.predict(rows), model.predict(rows).reshape(-1).astype(str))
                        np.testing.assert_allclose(self.champion.scores(rows), model.predict_proba(rows), atol=1e-4)

    def test_class_names(self) -> None:
        x = payments()
        y = np.where(x["age of card"] > 30, "old", "new")
        self.run_.save(LGBMClassifier(n_estimators=5, verbose=-1).fit(x[NUMBERS], y), x[NUMBERS])
        self.assertEqual(set(self.champion.predict(x[NUMBERS])), {"old", "new"})
        self.run_.save(XGBClassifier(n_estimators=5).fit(x[NUMBERS], (y == "old").astype(int)), x[NUMBERS], labels=["new", "old"])
        self.assertEqual(set(self.champion.predict(x[NUMBERS])), {"old", "new"})

    def test_catboost_knows_its_class_names(self) -> None:
        x = payments()[NUMBERS]
        self.run_.save(CatBoostClassifier(**QUIET).fit(x, np.where(x["age of card"] > 30, "old", "new")), x)
        self.assertEqual(set(self.champion.predict(x)), {"old", "new"})
        self.assertIn('labels: ["new", "old"]\ngolden: {"inputs": {"amount": [[', (self.out / "model.yaml").read_text())

    def test_catboost_of_an_array_has_one_input(self) -> None:
        x = payments()[NUMBERS].to_numpy()
        model = CatBoostClassifier(**QUIET).fit(x, (x[:, 1] > 30).astype(int))
        self.run_.save(model, x)
        np.testing.assert_allclose(self.champion.scores(x), model.predict_proba(x), atol=1e-4)
        self.assertIn('golden: {"inputs": {"features": [[', (self.out / "model.yaml").read_text())

    def test_the_same_catboost_gives_the_same_file(self) -> None:
        x = payments()[NUMBERS]
        files = []
        for _ in range(2):
            self.run_.save(CatBoostRegressor(**QUIET, random_seed=1).fit(x, x["age of card"]), x)
            files.append((self.out / "model.onnx").read_bytes())
        self.assertEqual(files[0], files[1])

    def test_what_catboost_cannot_write(self) -> None:
        x = payments()
        y = (x["age of card"] > 30).astype(int)
        own = CatBoostClassifier(**QUIET, cat_features=["country"]).fit(x, y)
        with self.assertRaisesRegex(SaveError, r"categorical columns \(country\) as ONNX: leave out cat_features, and put a OneHotEncoder"):
            self.run_.save(own, x)
        for kind in (bool, float):
            with self.assertRaisesRegex(SaveError, r"cannot write classes of type \w+ as ONNX: train with texts or integers"):
                self.run_.save(CatBoostClassifier(**QUIET).fit(x[NUMBERS], y.astype(kind)), x[NUMBERS])
        self.assertEqual(list(self.out.iterdir()), [])

    def test_regressors(self) -> None:
        x = payments()
        y = x["amount"].fillna(50) * 2 + x["age of card"]
        for make in (lambda: LGBMRegressor(n_estimators=30, verbose=-1), lambda: XGBRegressor(n_estimators=30),
                     lambda: CatBoostRegressor(**QUIET)):
            for model, rows in ((make(), x[NUMBERS]), (pipeline(make()), x)):
                with self.subTest(type(make()).__name__, columns=len(rows.columns)):
                    model.fit(rows, y)
                    self.run_.save(model, rows)
                    np.testing.assert_allclose(self.champion.predict(rows), model.predict(rows), rtol=1e-3, atol=0.5)

    def test_the_model_is_left_alone(self) -> None:
        x = payments()[NUMBERS]
        model = XGBClassifier(n_estimators=5).fit(x, x["age of card"] > 30)
        self.run_.save(model, x)
        self.assertEqual(model.get_booster().feature_names, NUMBERS)


TRAINER = """
from lightgbm import LGBMClassifier
from xgboost import XGBClassifier

from tidemill import run

rows = run.inputs.frame("payments")
x, y = rows[["amount", "age of card"]], (rows["amount"] > 100).astype(int)
model = LGBMClassifier(n_estimators=20, verbose=-1) if run.key == "lightgbm" else XGBClassifier(n_estimators=20)
model.fit(x[::2], y[::2])
names = ["small", "large"]
run.predictions([names[i] for i in y[1::2]], [names[i] for i in model.predict(x[1::2])])
run.save(model, x[1::2], labels=names)
"""

CONFIG = f"""
version: 1
recipes:
  size:
    when: {{type: new-data, where: "dataset LIKE 'pay/%'", debounce: 300ms}}
    inputs: {{payments: "pay/{{key}}"}}
    run: {{dir: ., command: ['{sys.executable}', train.py], attempts: 1}}
    makes: {{model: "size/{{key}}"}}
streams: {{payments: {{types: [payment]}}, scored: }}
scorers:
  size: {{from: payments, to: scored, model: "size/{{key}}"}}
"""


class Served(unittest.TestCase):
    """Boosted trees on a stream."""

    def test_a_scorer_answers_as_the_model(self) -> None:
        up = Up({"tidemill.yaml": CONFIG, "train.py": TRAINER})
        self.addCleanup(up.stop)
        client = up.start()
        x = payments().fillna(50)
        for key in ("lightgbm", "xgboost"):
            client.data.put(f"pay/{key}", x)
        eventually("two champions", lambda: len([m for m in client.models.list("size/") if m["champion"]]) == 2, 180)
        for key in ("lightgbm", "xgboost"):
            eventually("an answer", lambda: self.label(client, key, 20.5))
            self.assertEqual([self.label(client, key, amount) for amount in (20.5, 180)], ["small", "large"])

    def label(self, client: Client, key: str, amount: float) -> Optional[str]:
        """Return a label, or None without a champion: the scorer learns of one a moment after the list of models."""
        try:
            return str(client.score("size", {"amount": amount, "age of card": 3}, key)["label"])
        except TidemillError as e:
            self.assertIn("has no champion", str(e))
            return None


if __name__ == "__main__":
    unittest.main()
