"""examples/libraries with TensorFlow."""

from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
import example  # noqa: E402


class Followed(unittest.TestCase):
    """Two commits of data, two versions, and a scorer."""

    def test_tensorflow(self) -> None:
        example.follow(self, "tensorflow", "go")

    def test_an_interrupted_run_continues(self) -> None:
        example.interrupt(self, "tensorflow", 20)

if __name__ == "__main__":
    unittest.main()
