"""A run's inputs and output, without Tidemill."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tidemill import NoInput, Run
from tidemill import _card


class InRun(unittest.TestCase):
    """Each test has the folders of a run."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.env = {"TIDEMILL_RUN": "r1", "TIDEMILL_RECIPE": "fraud", "TIDEMILL_KEY": "shop", "TIDEMILL_ATTEMPT": "2"}
        for name in ("in", "out", "checkpoint", "champion"):
            self.env["TIDEMILL_" + name.upper()] = str(self.root / name)
            (self.root / name).mkdir()
        self.run_ = Run(self.env)

    def lines(self, name: str) -> list:
        return (self.root / "out" / name).read_text(encoding="utf-8").splitlines()

    def test_names(self) -> None:
        r = self.run_
        self.assertEqual((r.inside, r.id, r.recipe, r.key, r.attempt), (True, "r1", "fraud", "shop", 2))

    def test_rows_of_all_csv_files(self) -> None:
        folder = self.root / "in" / "examples" / "deep"
        folder.mkdir(parents=True)
        (folder / "b.csv").write_bytes(b"\xef\xbb\xbfname,n\r\n\"a, b\",1\r\n")
        (folder.parent / "a.csv").write_text("name,n\nü,2\n", encoding="utf-8")
        (folder / "other.txt").write_text("no")
        self.assertEqual(self.run_.inputs.rows("examples"), [{"name": "ü", "n": "2"}, {"name": "a, b", "n": "1"}])
        self.assertEqual(list(self.run_.inputs), ["examples"])

    def test_a_missing_input_is_named(self) -> None:
        (self.root / "in" / "labels").mkdir()
        with self.assertRaisesRegex(NoInput, r"no input 'examples' in .*: labels"):
            self.run_.inputs["examples"]
        with self.assertRaisesRegex(FileNotFoundError, "csv"):
            self.run_.inputs.rows("labels")

    def test_curve(self) -> None:
        self.run_.log(1, total=3, loss=0.5)
        self.run_.log(2, loss=math.nan, rate=math.inf)
        self.assertEqual([json.loads(line) for line in self.lines("metrics.jsonl")],
                         [{"step": 1, "total": 3, "loss": 0.5}, {"step": 2, "loss": None, "rate": None}])

    def test_metrics_add_up(self) -> None:
        self.run_.metrics(accuracy=0.5, by={"shop": {"f1": 1}})
        self.run_.metrics(loss=0.25)
        self.assertEqual(json.loads("".join(self.lines("metrics.json"))), {"accuracy": 0.5, "by": {"shop": {"f1": 1}}, "loss": 0.25})

    def test_metrics_that_cannot_judge_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, r"by\.shop is nan"):
            self.run_.metrics(by={"shop": math.nan})
        self.assertFalse((self.root / "out" / "metrics.json").exists())

    def test_predictions(self) -> None:
        self.run_.predictions(["a, \"b\"", True, 1.0, 2.5], [None, False, math.nan, 2], champion=[["x"], ["y"], [""], ["z"]])
        with open(self.root / "out" / "predictions.csv", newline="", encoding="utf-8") as f:
            self.assertEqual(list(csv.reader(f)), [["truth", "predicted", "champion"], ["a, \"b\"", "", "x"], ["true", "false", "y"],
                                                   ["1", "", ""], ["2.5", "2", "z"]])

    def test_predictions_of_different_lengths_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "'truth': 2, 'predicted': 1"):
            self.run_.predictions([1, 2], [1])
        self.assertEqual(os.listdir(self.root / "out"), [])

    def test_checkpoint(self) -> None:
        c = self.run_.checkpoint
        self.assertEqual(c.load("state.json", {"step": 0}), {"step": 0})
        c.save("state.json", {"step": 3})
        c.save("weights", b"\x00\xff")
        self.assertEqual((c.load("state.json"), c.load("weights")), ({"step": 3}, b"\x00\xff"))
        self.assertEqual(os.fspath(c), str(self.root / "checkpoint"))

    def test_a_failed_checkpoint_leaves_the_old_one(self) -> None:
        c = self.run_.checkpoint
        c.save("state.json", {"step": 3})
        with self.assertRaises(ZeroDivisionError):
            with c.writing("state.json") as path:
                self.assertEqual(path.suffix, ".json", "some libraries choose the format by the ending")
                path.write_text("half")
                raise ZeroDivisionError
        self.assertEqual(c.load("state.json"), {"step": 3})
        self.assertEqual(os.listdir(c.folder), ["state.json"])

    def test_champion(self) -> None:
        self.assertIsNone(self.run_.champion)
        (self.root / "champion" / "model.onnx").write_bytes(b"")
        champion = self.run_.champion
        self.assertIsNotNone(champion)
        self.assertTrue((champion / "model.onnx").exists())

    def test_events(self) -> None:
        self.assertEqual(self.run_.events, [])
        (self.root / "events").write_text('{"id": "1"}\n{"id": "2"}\n')
        self.env["TIDEMILL_EVENTS"] = str(self.root / "events")
        self.assertEqual([e["id"] for e in self.run_.events], ["1", "2"])


class Outside(unittest.TestCase):
    """A program that plain python runs."""

    def python(self, folder: str, program: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
        return subprocess.run([sys.executable, "-c", program], cwd=folder, env=env, check=True, capture_output=True, text=True).stdout

    def test_folders_of_the_current_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "in", "examples"))
            program = ("from tidemill import run\n"
                       "print(run.inside, run.key, run.champion, run.events, list(run.inputs), run.inputs['examples'])\n"
                       "run.log(1, loss=2); run.metrics(a=1); run.checkpoint.save('s', 1)")
            for _ in range(2):
                self.assertEqual(self.python(folder, program).split(), ["False", "local", "None", "[]", "['examples']", "in/examples"])
            self.assertEqual(sorted(os.listdir(folder)), ["checkpoint", "in", "out"])
            with open(os.path.join(folder, "out", "metrics.jsonl"), encoding="utf-8") as f:
                self.assertEqual(len(f.readlines()), 1, "the curve of the first try is gone")

    def test_only_the_standard_library_is_imported(self) -> None:
        loaded = self.python(".", "import sys, tidemill\nprint([m for m in ('numpy', 'pandas', 'onnx', 'onnxruntime', 'torch') if m in sys.modules])")
        self.assertEqual(loaded.strip(), "[]")

    def test_a_missing_library_is_named(self) -> None:
        program = ("from tidemill import run\nimport sys\nsys.modules['pandas'] = sys.modules['onnxruntime'] = None\n"
                   "open('in/x/a.csv', 'w').write('a\\n1\\n')\n"
                   "for f in (lambda: run.inputs.frame('x'), lambda: run.save(1, [[1]])):\n"
                   "    try: f()\n    except ImportError as e: print(e)")
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "in", "x"))
            self.assertRegex(self.python(folder, program), "(?s)pip install pandas.*pip install onnxruntime")


class Cards(unittest.TestCase):
    """The file model.yaml."""

    def test_round(self) -> None:
        card = {"labels": ["no", "ü: \"x\""], "output": "probabilities", "golden": {"inputs": {"a b": [[1.5, math.nan]]}, "label": "no"}}
        text = _card.write(card)
        self.assertEqual(text, 'labels: ["no", "ü: \\"x\\""]\noutput: "probabilities"\n'
                         'golden: {"inputs": {"a b": [[1.5, .nan]]}, "label": "no"}\n')
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "model.yaml"
            self.assertEqual(_card.read(file), {})
            file.write_text(text, encoding="utf-8")
            self.assertEqual(_card.read(file), {**card, "golden": None})


if __name__ == "__main__":
    unittest.main()
