"""Recipes as functions: their file, a try, and a real run."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from upped import IDENTITY, Up, eventually

SCRIPT = '''
from tidemill import recipe, run

@recipe("mean", when={"type": "new-data", "where": "dataset LIKE 'shops/%'", "debounce": "300ms"},
        inputs={"sales": "shops/{key}"}, makes="mean/{key}", gate=["metrics.rows >= 2"], run={"attempts": 1}, keep=3)
def train():
    """Train on the rows."""
    rows = run.inputs.rows("sales")
    run.metrics(rows=len(rows))
    (run.out / "model.onnx").write_bytes(bytes.fromhex('IDENTITY'))
    (run.out / "about.txt").write_text("a model of " + run.key)
    print("trained on", len(rows), "rows", flush=True)

@recipe("other", when=[{"type": "a"}, {"type": "b"}], makes={"dataset": "out/{key}"})
def other():
    raise SystemExit("other was called")
'''.replace("IDENTITY", IDENTITY)


class Recipes(unittest.TestCase):
    """Each test has a folder with the script."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "script.py").write_text(SCRIPT)

    def python(self, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
        environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
        return subprocess.run([sys.executable, *args], cwd=self.root, env={**environ, **env}, capture_output=True, text=True)

    def test_init_writes_a_valid_file_again_and_again(self) -> None:
        for _ in range(2):
            done = self.python("-m", "tidemill", "init", "script.py")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = (self.root / "tidemill.yaml").read_text()
        self.assertIn('inputs: {"sales": "shops/{key}"}', text)
        self.assertIn('      - "metrics.rows >= 2"', text)
        self.assertIn('"-m", "tidemill", "run", "script.py"], "attempts": 1}', text)
        subprocess.run([os.environ["TIDEMILL_BINARY"], "validate"], cwd=self.root, check=True, capture_output=True)

    def test_init_replaces_no_file_of_a_person(self) -> None:
        (self.root / "tidemill.yaml").write_text("version: 1\n")
        done = self.python("-m", "tidemill", "init", "script.py")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^tidemill: .*tidemill.yaml was written by hand")
        self.assertEqual(self.python("-m", "tidemill", "init", "script.py", "--to", "deep/made.yaml").returncode, 0)
        self.assertIn('"dir": ".."', (self.root / "deep" / "made.yaml").read_text())

    def test_init_of_what_has_no_recipe(self) -> None:
        (self.root / "empty.py").write_text("")
        for script, said in (("empty.py", "declares no recipe"), ("missing.py", "is not a Python script")):
            done = self.python("-m", "tidemill", "init", script)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)

    def test_run_calls_the_function_of_the_recipe(self) -> None:
        done = self.python("-m", "tidemill", "run", "script.py", TIDEMILL_RECIPE="other")
        self.assertIn("other was called", done.stderr)
        done = self.python("-m", "tidemill", "run", "script.py", "nothing")
        self.assertIn("declares no recipe 'nothing'; it has mean, other", done.stderr)

    def test_try(self) -> None:
        (self.root / "data").mkdir()
        (self.root / "data" / "a.csv").write_text("n\n1\n2\n3\n")
        (self.root / "bin").mkdir()
        (self.root / "bin" / "tidemill").symlink_to(os.path.abspath(os.environ["TIDEMILL_BINARY"]))
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = self.python("-c", "import script; script.train.try_('berlin', 'data', out='made')", PATH=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("trained on 3 rows", done.stdout + done.stderr)
        self.assertEqual((self.root / "made" / "about.txt").read_text(), "a model of berlin")
        done = self.python("-c", "import script; script.train.try_('berlin', 'data')", PATH="/nowhere")
        self.assertIn("tidemill is not in PATH", done.stderr)

    def test_plain_python(self) -> None:
        (self.root / "in" / "sales").mkdir(parents=True)
        (self.root / "in" / "sales" / "a.csv").write_text("n\n1\n")
        done = self.python("-c", "import script; script.train(); print(script.train.__doc__)")
        self.assertEqual(done.stdout, "trained on 1 rows\nTrain on the rows.\n")
        self.assertEqual((self.root / "out" / "about.txt").read_text(), "a model of local")

    def test_a_real_run(self) -> None:
        self.python("-m", "tidemill", "init", "script.py")
        up = Up({name: (self.root / name).read_text() for name in ("script.py", "tidemill.yaml")})
        self.addCleanup(up.stop)
        client = up.start()
        (self.root / "sales.csv").write_text("n\n1\n2\n")
        client.data.put("shops/berlin", self.root / "sales.csv")
        run = eventually("the run of the commit", lambda: client.runs.list(recipe="mean"))[0]["id"]  # type: ignore[index]
        self.assertEqual(list(client.runs.follow(run)), ["trained on 2 rows"])
        eventually("the champion", lambda: client.models.list("mean/")[0]["champion"] == 1 if client.models.list("mean/") else False)


if __name__ == "__main__":
    unittest.main()
