"""Learns from payments in 30 epochs, and reports its loss after each."""

import time

import numpy
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tidemill import run

EPOCHS = 30
rows = run.inputs.frame("payments")
x, y = rows.drop(columns="label"), rows["label"]
learn, test = x[::2], x[1::2]
prepare = ColumnTransformer([("numbers", StandardScaler(), ["amount", "age"]),
                             ("classes", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["country"])])
model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.002, random_state=1)
columns = prepare.fit_transform(learn)
for epoch in range(EPOCHS):
    model.partial_fit(columns, y[::2], classes=numpy.unique(y))
    run.log(epoch + 1, total=EPOCHS, loss=log_loss(y[1::2], model.predict_proba(prepare.transform(test))))
    time.sleep(0.2)  # slow enough to follow

trained = make_pipeline(prepare, model)
champion = run.champion.predict(test) if run.champion else None
run.predictions(y[1::2], trained.predict(test), champion=champion)
run.metrics(rows=len(rows))
run.save(trained, test)
