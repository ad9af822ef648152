"""Learns to predict a column of a table with scikit-learn.

Replace what you like. A run has to write a model.onnx, which run.save does, and the gate
needs the predictions for rows that the model has not learned from.
"""
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tidemill import run

LABEL = "label"  # the column to predict
IGNORE = []  # columns that the model must not read, such as ids

# All CSV files of the dataset. Only an empty cell is a missing value: "NA" can be a country.
x = run.inputs.frame("table", keep_default_na=False, na_values=[""])
x = x.dropna(subset=[LABEL]).drop(columns=IGNORE).sample(frac=1, random_state=1)
y = x.pop(LABEL).astype(str)
numbers = list(x.select_dtypes(["number", "bool"]))
texts = [name for name in x if name not in numbers]
x[numbers] = x[numbers].astype(float)
x[texts] = x[texts].fillna("").astype(str)

# A quarter of the rows judges. The content of a row decides, so a row that has judged a
# champion is never learned from later, when there are more rows.
judge = pd.util.hash_pandas_object(x, index=False) % 4 == 0
learn_x, learn_y, judge_x, judge_y = x[~judge], y[~judge], x[judge], y[judge]
print(f"{len(learn_x)} rows to learn from, {len(judge_x)} to judge by: numbers {numbers}, texts {texts}", flush=True)

filled = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
model = make_pipeline(make_column_transformer((filled, numbers), (OneHotEncoder(handle_unknown="ignore"), texts)),
                      GradientBoostingClassifier(random_state=1))

# The curve: how the model improves with more rows. The last step learns from all of them.
for part in (0.25, 0.5, 0.75, 1.0):
    rows = int(part * len(learn_x))
    model.fit(learn_x[:rows], learn_y[:rows])
    run.log(step=rows, total=len(learn_x), accuracy=model.score(judge_x, judge_y))

champion = run.champion  # the promoted model, or None: both answer for the same rows
run.predictions(judge_y, model.predict(judge_x), champion.predict(judge_x) if champion else None)
run.metrics(rows=len(x))
run.save(model, judge_x)
