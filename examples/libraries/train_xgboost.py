"""Learns the state of a pump with XGBoost."""
from xgboost import XGBClassifier
from xgboost.callback import TrainingCallback

from readings import STATES, split
from tidemill import run

TREES = 60
x, y, test_x, test_y = split(run.inputs.frame("readings"))


class Curve(TrainingCallback):
    """Reports the loss after each round."""

    def after_iteration(self, model, epoch, evals_log):
        run.log(epoch + 1, total=TREES, loss=evals_log["validation_0"]["mlogloss"][-1])
        return False  # do not stop


model = XGBClassifier(n_estimators=TREES, max_depth=4, random_state=1, callbacks=[Curve()])
numbers, test_numbers = y.map(STATES.index), test_y.map(STATES.index)  # XGBoost takes no texts as classes
model.fit(x, numbers, eval_set=[(test_x, test_numbers)], verbose=False)

champion = run.champion.predict(test_x) if run.champion else None
run.predictions(test_y, [STATES[i] for i in model.predict(test_x)], champion=champion)
run.save(model, test_x, labels=STATES)
