"""examples/libraries with PyTorch."""

from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
import example  # noqa: E402


class Followed(unittest.TestCase):
    """Two commits of data, two versions, and a scorer."""

    def test_torch(self) -> None:
        example.follow(self, "torch", "go")

    def test_an_interrupted_run_makes_the_same_model(self) -> None:
        resumed, undisturbed = example.interrupt(self, "torch", 100)
        self.assertEqual(resumed, undisturbed)

if __name__ == "__main__":
    unittest.main()
