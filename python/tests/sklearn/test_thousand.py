"""The ten most used estimators of scikit-learn, and the boosting libraries: 1,000 answers of a scorer are those of the library."""

from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
import thousand  # noqa: E402

MODELS = {
    "LogisticRegression": ("sklearn.linear_model", "LogisticRegression()"),
    "LinearRegression": ("sklearn.linear_model", "LinearRegression()"),
    "RandomForestClassifier": ("sklearn.ensemble", "RandomForestClassifier(random_state=1)"),
    "RandomForestRegressor": ("sklearn.ensemble", "RandomForestRegressor(random_state=1)"),
    "GradientBoostingClassifier": ("sklearn.ensemble", "GradientBoostingClassifier(random_state=1)"),
    "HistGradientBoostingClassifier": ("sklearn.ensemble", "HistGradientBoostingClassifier(random_state=1)"),
    "DecisionTreeClassifier": ("sklearn.tree", "DecisionTreeClassifier(random_state=1)"),
    "KNeighborsClassifier": ("sklearn.neighbors", "KNeighborsClassifier()"),
    "SVC": ("sklearn.svm", "SVC()"),
    "GaussianNB": ("sklearn.naive_bayes", "GaussianNB()"),
    "LGBMClassifier": ("lightgbm", "LGBMClassifier(verbose=-1)"),
    "LGBMRegressor": ("lightgbm", "LGBMRegressor(verbose=-1)"),
    "XGBClassifier": ("xgboost", "XGBClassifier()"),
    "XGBRegressor": ("xgboost", "XGBRegressor()"),
    "CatBoostClassifier": ("catboost", "CatBoostClassifier(verbose=False, allow_writing_files=False)"),
    "CatBoostRegressor": ("catboost", "CatBoostRegressor(verbose=False, allow_writing_files=False)"),
}


class Served(unittest.TestCase):
    """Each model is the last step of a pipeline with an imputer, a scaler and a one-hot encoder."""

    def test_answers_are_those_of_the_library(self) -> None:
        thousand.ask_all(self, MODELS)


if __name__ == "__main__":
    unittest.main()
