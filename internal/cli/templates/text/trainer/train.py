"""Learns the label of a text with scikit-learn: TF-IDF and a linear model.

The model needs no ONNX Runtime: Tidemill's own engine runs it.
"""
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import text
from tidemill import run

TEXT, LABEL = "text", "label"  # columns of the table
OFTEN = 2  # number of texts that must have a word

# All CSV files of the dataset.
rows = run.inputs.frame("texts", dtype=str, keep_default_na=False).sample(frac=1, random_state=1)

# A quarter of the rows judges. The text decides, so a text that has judged a champion is never
# learned from later, when there are more rows.
judge = pd.util.hash_pandas_object(rows[[TEXT]], index=False) % 4 == 0
learn, judge = rows[~judge], rows[judge]
print(f"{len(learn)} texts to learn from, {len(judge)} to judge by: labels {sorted(set(rows[LABEL]))}", flush=True)

# Without a norm the model stays linear, so text.py can write it as one product.
vectorizer = TfidfVectorizer(analyzer=text.words, min_df=OFTEN, norm=None)
counts, judge_counts = vectorizer.fit_transform(learn[TEXT]), vectorizer.transform(judge[TEXT])
classifier = LogisticRegression(C=0.1, max_iter=1000)

# The curve: how the model improves with more texts. The last step learns from all of them.
for part in (0.25, 0.5, 0.75, 1.0):
    size = int(part * len(learn))
    classifier.fit(counts[:size], learn[LABEL][:size])
    run.log(step=size, total=len(learn), accuracy=classifier.score(judge_counts, judge[LABEL]))

texts = list(judge[TEXT])
champion = run.champion  # the promoted model, or None: both answer for the same texts
run.predictions(judge[LABEL], classifier.predict(judge_counts), champion.predict(texts) if champion else None)
run.metrics(rows=len(rows), words=len(vectorizer.vocabulary_))
text.save(run.out, vectorizer, classifier, texts)
