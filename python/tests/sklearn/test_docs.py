"""Every code block of docs/python.md is executed, in its order, with a real tidemill up."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys
import unittest
from typing import Any, Dict, List, Tuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "standard"))
from upped import Up, eventually  # noqa: E402

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


def blocks() -> List[Tuple[str, str, str]]:
    """Return the language, the file and the text of each block."""
    found = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(found) == DOCUMENT.read_text(encoding="utf-8").count("```") / 2, "a block was not understood"
    return found


class Document(unittest.TestCase):
    """The document is one session: files, commands and Python."""

    def setUp(self) -> None:
        self.up = Up({})
        self.addCleanup(self.up.stop)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.up.folder)
        (self.up.use_this_python(self) / "tidemill").symlink_to(os.path.abspath(os.environ["TIDEMILL_BINARY"]))

    def test_it_works(self) -> None:
        names: Dict[str, Any] = {}
        said = []
        for language, file, text in blocks():
            with self.subTest(text):
                if file:
                    pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
                    pathlib.Path(file).write_text(text, encoding="utf-8")
                elif language == "sh":
                    said.extend(self.command(line) for line in text.splitlines())
                elif language == "python":
                    said.append(self.execute(text, names))
                else:
                    self.fail(f"a block of {language} is not executed")
        self.look(names, "".join(said))

    def command(self, line: str) -> str:
        """Run a command of the shell. The wheel is installed already, and tidemill up needs free ports."""
        if line == "pip install ./python":
            return ""
        if line == "tidemill up":
            self.client = self.up.start()
            return ""
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def execute(self, text: str, names: Dict[str, Any]) -> str:
        """Run Python. A reader takes a while before looking at a model, so its champion is there."""
        if "client.models" in text:
            eventually("the champion", lambda: [m for m in self.client.models.list() if m["champion"]])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(text, names)
        return out.getvalue()

    def look(self, names: Dict[str, Any], said: str) -> None:
        """Look at what the reader sees."""
        self.assertEqual(len(names["frame"]), 600)
        self.assertEqual(names["ended"]["state"], "succeeded")
        self.assertRegex(said, r"succeeded None")
        self.assertRegex(said, r"fraud/shop-7 \d \{'accuracy': 0\.[89]")
        self.assertRegex(said, r"\{'fine': \{'fine': \d+, 'fraud': \d+\}, 'fraud'")
        self.assertRegex(said, r"'label': 'fraud', 'score': 0\.\d+")
        self.assertRegex(said, r"paid 0")
        self.assertEqual(len(re.findall(r"^(?:fine|fraud) [01]", said, re.MULTILINE)), 20)
        self.assertIn("valid", said)
        self.assertIn("mean", said)


if __name__ == "__main__":
    unittest.main()
