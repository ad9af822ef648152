"""Learns the state of a pump with CatBoost."""
from catboost import CatBoostClassifier

from readings import split
from tidemill import run

TREES = 60
x, y, test_x, test_y = split(run.inputs.frame("readings"))


class Curve:
    """Reports the loss after each round."""

    def after_iteration(self, info):
        run.log(info.iteration, total=TREES, loss=info.metrics["validation"]["MultiClass"][-1])
        return True  # go on


model = CatBoostClassifier(n_estimators=TREES, depth=4, random_seed=1, verbose=False, allow_writing_files=False)
model.fit(x, y, eval_set=(test_x, test_y), use_best_model=False, callbacks=[Curve()])

champion = run.champion.predict(test_x) if run.champion else None
run.predictions(test_y, model.predict(test_x), champion=champion)
run.save(model, test_x)  # the model knows the names of its classes
