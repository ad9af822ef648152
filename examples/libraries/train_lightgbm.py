"""Learns the state of a pump with LightGBM."""
from lightgbm import LGBMClassifier

from readings import split
from tidemill import run

TREES = 60
x, y, test_x, test_y = split(run.inputs.frame("readings"))


def curve(env):
    """Report the loss after each round."""
    run.log(env.iteration + 1, total=TREES, loss=env.evaluation_result_list[0][2])


model = LGBMClassifier(n_estimators=TREES, num_leaves=15, random_state=1, verbose=-1)
model.fit(x, y, eval_set=[(test_x, test_y)], callbacks=[curve])

champion = run.champion.predict(test_x) if run.champion else None
run.predictions(test_y, model.predict(test_x), champion=champion)
run.save(model, test_x)  # the model knows the names of its classes
