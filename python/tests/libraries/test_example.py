"""examples/libraries with LightGBM, XGBoost and CatBoost."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
import example  # noqa: E402


class Followed(unittest.TestCase):
    """Two commits of data, two versions, and a scorer."""

    def test_libraries(self) -> None:
        for library in ("lightgbm", "xgboost", "catboost"):
            with self.subTest(library):
                example.follow(self, library, "onnxruntime")

    def test_data_are_generated(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, example.FOLDER / "make_data.py"], cwd=folder, check=True)
            for name in ("data/2026-01.csv", "later/2026-02.csv"):
                self.assertEqual((pathlib.Path(folder) / name).read_text(), example.FILES[name], f"run make_data.py for {name}")

if __name__ == "__main__":
    unittest.main()
