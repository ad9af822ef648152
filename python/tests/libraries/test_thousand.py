"""The ten most used estimators of scikit-learn, and the boosting libraries: 1,000 answers of a scorer are those of the library."""

from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
import thousand  # noqa: E402

IMPORTS = """
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier, XGBRegressor
"""

ESTIMATORS = {
    "LogisticRegression": "LogisticRegression()",
    "LinearRegression": "LinearRegression()",
    "RandomForestClassifier": "RandomForestClassifier(random_state=1)",
    "RandomForestRegressor": "RandomForestRegressor(random_state=1)",
    "GradientBoostingClassifier": "GradientBoostingClassifier(random_state=1)",
    "HistGradientBoostingClassifier": "HistGradientBoostingClassifier(random_state=1)",
    "DecisionTreeClassifier": "DecisionTreeClassifier(random_state=1)",
    "KNeighborsClassifier": "KNeighborsClassifier()",
    "SVC": "SVC()",
    "GaussianNB": "GaussianNB()",
}
BOOSTING = {
    "LGBMClassifier": "LGBMClassifier(verbose=-1)",
    "LGBMRegressor": "LGBMRegressor(verbose=-1)",
    "XGBClassifier": "XGBClassifier()",
    "XGBRegressor": "XGBRegressor()",
    "CatBoostClassifier": "CatBoostClassifier(verbose=False, allow_writing_files=False)",
    "CatBoostRegressor": "CatBoostRegressor(verbose=False, allow_writing_files=False)",
}


class Served(unittest.TestCase):
    """Each model is the last step of a pipeline with an imputer, a scaler and a one-hot encoder."""

    def test_answers_are_those_of_the_library(self) -> None:
        thousand.ask_all(self, {**ESTIMATORS, **BOOSTING}, IMPORTS)


if __name__ == "__main__":
    unittest.main()
