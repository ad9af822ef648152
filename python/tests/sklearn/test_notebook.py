"""The notebook of examples/notebook is executed with a real tidemill up, and looked at."""

from __future__ import annotations

import pathlib
import sys
import unittest

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
from upped import Up  # noqa: E402

FOLDER = pathlib.Path(__file__).parents[3] / "examples" / "notebook"


class Notebook(unittest.TestCase):
    """The cells run in a folder with the example's files."""

    def test_the_loop(self) -> None:
        up = Up({name: (FOLDER / name).read_text(encoding="utf-8") for name in ("tidemill.yaml", "train.py")})
        self.addCleanup(up.stop)
        up.use_this_python(self)
        up.start()
        book = nbformat.read(FOLDER / "loop.ipynb", as_version=4)
        self.assertFalse([c for c in book.cells if c.get("outputs")], "the notebook is stored without outputs")
        NotebookClient(book, timeout=180, resources={"metadata": {"path": str(up.folder)}}).execute()
        self.look(book)

    def look(self, book: nbformat.NotebookNode) -> None:
        """Look at the pictures and the texts."""
        outputs = [o for c in book.cells for o in c.get("outputs", [])]
        pictures = [o for o in outputs if "image/png" in o.get("data", {})]
        self.assertEqual(len(pictures), 3)
        said = "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs)
        self.assertIn("'succeeded'", said)
        self.assertIn("has version 1 as its champion", said)
        self.assertRegex(said, r"20000 answers, 0\.(8|9)\d+ of them right")
        self.assertIn("'label': ", said)
        self.assertRegex(said, r"commit +.*payments/shop-7")


if __name__ == "__main__":
    unittest.main()
