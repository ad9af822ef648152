"""Models of many libraries, each trained in a run and asked by a scorer for 1,000 rows."""

from __future__ import annotations

import json
import pathlib
import sys
import unittest
from typing import Any, Dict, List, Tuple

import numpy as np
import pandas as pd
from upped import Up, eventually

ROWS = 1000
CLOSE = 1e-4  # greatest difference of a score; for other numbers, of the largest of them

TRAINER = """
import importlib
import json
import numpy as np
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tidemill import run

rows = run.inputs.frame("payments", keep_default_na=False, na_values=[""])
x, kind, value = rows.drop(columns=["kind", "value"]), rows["kind"], rows["value"]
numbers = make_pipeline(SimpleImputer(), StandardScaler())
classes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
module, expression = {models}[run.key]
last = eval(expression, vars(importlib.import_module(module)))
if run.key.startswith("XGB"):  # takes no texts as classes
    kind = kind.astype("category").cat.codes
model = make_pipeline(ColumnTransformer([("n", numbers, ["amount", "age of card"]), ("c", classes, ["country", "shop"])]), last)
model.fit(x[{rows}:], (kind if is_classifier(last) else value)[{rows}:])
asked = x[:{rows}]
predicted = np.asarray(model.predict(asked)).reshape(-1)
scores = model.predict_proba(asked).tolist() if hasattr(model, "predict_proba") else []
run.save(model, asked)
classes = [str(c) for c in model.classes_] if is_classifier(last) else []
predicted = [str(p) for p in predicted] if classes else predicted.tolist()
(run.out / "library.json").write_text(json.dumps({{"predicted": predicted, "scores": scores, "classes": classes}}))
run.predictions((kind if is_classifier(last) else value)[:{rows}], predicted)
"""

CONFIG = f"""
version: 1
recipes:
  model:
    when: {{type: new-data, where: "dataset LIKE 'pay/%'", debounce: 300ms}}
    inputs: {{payments: "pay/{{key}}"}}
    run: {{dir: ., command: ['{sys.executable}', train.py], attempts: 1}}
    makes: {{model: "model/{{key}}"}}
streams: {{payments: {{types: [payment]}}, scored: }}
scorers:
  model:
    from: payments
    to: scored
    model: "model/{{key}}"
    map: {{age of card: {{path: data.age of card, default: .nan}}}}
"""


def payments() -> pd.DataFrame:
    """Return rows to ask for, then rows to learn from. Some of both have gaps, which the imputer fills in.

    Amounts have five decimals, so that no two neighbours of a row are equally far from it. Which of
    two such rows counts is arbitrary, in KNeighborsClassifier itself, too.
    """
    rng = np.random.default_rng(11)
    n = 2 * ROWS
    x = pd.DataFrame({"amount": rng.gamma(2, 50, n).round(5), "age of card": rng.integers(0, 60, n),
                      "country": rng.choice(["de", "fr", "us"], n), "shop": rng.choice(["a", "b", "c", "d"], n)})
    risk = x["amount"] / 50 + (x["country"] == "us") * 2 - x["age of card"] / 20 + rng.normal(0, 0.5, n)
    x["kind"] = np.select([risk > 2, risk > 0], ["fraud", "odd"], "fine")
    x["value"] = (risk * 10).round(3)
    x.loc[rng.random(n) < 0.05, "age of card"] = np.nan
    return x


def ask_all(test: unittest.TestCase, models: Dict[str, Tuple[str, str]]) -> None:
    """Train the models, publish each row for each of them, and compare all answers.

    A model is the module that has it, and the expression that makes it there. Its run imports no
    other library, because imports take longer than the training.
    """
    up = Up({"tidemill.yaml": CONFIG, "train.py": TRAINER.format(models=models, rows=ROWS)})
    test.addCleanup(up.stop)
    client = up.start()
    rows = payments()
    for name in models:
        client.data.put(f"pay/{name}", rows)
    eventually("all champions", lambda: _champions(test, client) == len(models), 600)
    asked = rows[:ROWS].drop(columns=["kind", "value"]).to_dict("records")
    for name in models:
        client.publish([{"type": "payment", "subject": name, "data": row} for row in asked])
    answers: Dict[str, List[Dict[str, Any]]] = {name: [] for name in models}
    for tailed in client.tail("scored", "beginning", limit=ROWS * len(models)):
        answers[tailed.event["subject"]].append(tailed.event["data"])
    print(f"\n{'model':32} {'engine':12} {'rows equal':>10}  greatest difference", file=sys.stderr)
    for name in models:
        with test.subTest(name):
            files = client.models.get(f"model/{name}", up.folder / name)
            library = json.loads(next(p for p in files if p.name == "library.json").read_text())
            engine = client.models.version(f"model/{name}")["measured"]["trial"]["engine"]
            _compare(test, name, engine, library, answers[name])


def _champions(test: unittest.TestCase, client: Any) -> int:
    for run in client.runs.list(state="failed"):
        test.fail("\n".join(client.runs.log(run["id"])))
    return sum(1 for m in client.models.list("model/") if m["champion"])


def _compare(test: unittest.TestCase, name: str, engine: str, library: Dict[str, Any], answers: List[Dict[str, Any]]) -> None:
    """Print a line about a model, and fail if one answer is not the library's."""
    test.assertEqual(len(answers), ROWS)
    if library["classes"]:
        equal = sum(a["label"] == p for a, p in zip(answers, library["predicted"]))
        scores = [[a["scores"][c] for c in library["classes"]] for a in answers] if library["scores"] else []
        off = np.abs(np.array(scores) - np.array(library["scores"])).max(initial=0)
        said, most = f"{off:.1e}" if scores else "none has scores", CLOSE
    else:
        want = np.array(library["predicted"])
        apart = np.abs(np.array([a["values"][0] for a in answers]) - want)
        off, most = apart.max(), CLOSE * max(1.0, float(np.abs(want).max()))
        equal, said = int((apart <= most).sum()), f"{off:.1e} of {np.abs(want).max():.0f}"
    print(f"{name:32} {engine:12} {equal:10}  {said}", file=sys.stderr)
    test.assertEqual(equal, ROWS)
    test.assertLessEqual(off, most)
