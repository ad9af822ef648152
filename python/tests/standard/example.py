"""The example of libraries, followed with a real tidemill up for one of its libraries."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

from upped import Up, eventually

FOLDER = pathlib.Path(__file__).parents[3] / "examples" / "libraries"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
FILES = {str(p.relative_to(FOLDER)): p.read_text(encoding="utf-8") for p in sorted(FOLDER.rglob("*.*")) if p.suffix in (".csv", ".py", ".yaml")}


def follow(test: unittest.TestCase, library: str, engine: str) -> None:
    """Follow the README. The first version becomes the champion, and the second is measured against it."""
    up = Up(FILES)
    test.addCleanup(up.stop)
    (up.use_this_python(test) / "tidemill").symlink_to(os.path.abspath(os.environ["TIDEMILL_BINARY"]))
    client = up.start()
    install, first, score, second, compare = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    test.assertIn(f"\n{library} = [", (FOLDER.parents[1] / "python" / "pyproject.toml").read_text(encoding="utf-8"))
    test.assertIn('pip install "../../python[lightgbm]"', install)
    for version, put, look in ((1, first, score), (2, second, compare)):
        _said(test, up, library, put)
        judged = eventually(f"version {version} of {library}", lambda: _judged(test, client, f"{library}/hall-1", version), 180)
        measured = judged["measured"]  # type: ignore[index]
        test.assertEqual(measured["trial"]["engine"], engine)
        test.assertGreater(measured["metrics"]["accuracy"], 0.85)
        said = _said(test, up, library, look)
        test.assertIn('"label":"worn"' if version == 1 else "on the same", said)
    test.assertEqual(measured["champion"]["version"], 1)
    files = {p.name: p.read_text(encoding="utf-8", errors="replace") for p in client.models.get(f"{library}/hall-1", up.folder / "got")}
    curve = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    test.assertGreaterEqual(len(curve), 10)
    test.assertEqual(curve[-1]["step"], curve[-1]["total"])
    test.assertLess(curve[-1]["loss"], curve[0]["loss"])
    _score(test, client, library, [row["predicted"] for row in csv.DictReader(files["predictions.csv"].splitlines())])


def _said(test: unittest.TestCase, up: Up, library: str, commands: str) -> str:
    """Run the commands of a block for a library, and return their output."""
    done = subprocess.run(["sh", "-e", "-c", commands.replace("lightgbm", library)], cwd=up.folder, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    test.assertEqual(done.returncode, 0, done.stdout)
    return done.stdout


def _judged(test: unittest.TestCase, client: Any, model: str, version: int) -> Any:
    for run in client.runs.list(state="failed"):
        test.fail("\n".join(client.runs.log(run["id"])))
    known = [m for m in client.models.list(model) if m["newest"] == version and m["state"] != "registered"]
    judged = client.models.version(model, version) if known else None
    if judged:
        test.assertEqual((known[0]["champion"], known[0]["state"]), (version, "promoted"), judged["judgement"]["sentence"])
    return judged


def _score(test: unittest.TestCase, client: Any, library: str, predicted: List[str]) -> None:
    """Compare the scorer's answers with those of the library, which the run wrote for the rows that it judged by."""
    rows = _judging_rows()
    test.assertEqual(len(rows), len(predicted))
    client.publish([{"type": "reading", "subject": "hall-1", "data": row} for row in rows])
    scored = [t.event["data"] for t in client.tail("states", "beginning", limit=1 + len(rows))][1:]  # the first is from the README
    test.assertEqual([s["label"] for s in scored], predicted)
    test.assertEqual(client.score(library, rows[0], "hall-1")["label"], predicted[0])
    print(f"\nexamples/libraries: {library}: {len(rows)} answers of the scorer equal to the library's", file=sys.stderr)


def _judging_rows() -> List[Dict[str, Any]]:
    import pandas

    sys.path.insert(0, str(FOLDER))
    try:
        from readings import split  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(FOLDER))
    rows = pandas.concat([pandas.read_csv(FOLDER / name) for name in ("data/2026-01.csv", "later/2026-02.csv")], ignore_index=True)
    return split(rows)[2].to_dict("records")  # type: ignore[no-any-return]


KILLED = """
import os, runpy, sys
import tidemill
log = tidemill.Run.log
def killing(self, step, *args, **metrics):
    log(self, step, *args, **metrics)
    if step == {step}:
        os._exit(9)
tidemill.Run.log = killing
sys.path.insert(0, "")
runpy.run_path({script!r})
"""


def interrupt(test: unittest.TestCase, library: str, step: int) -> "tuple[bytes, bytes]":
    """Kill a trainer after a step, and start it again. Return its model, and that of an undisturbed trainer."""
    models = []
    for killed in (True, False):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            for name, text in FILES.items():
                to = folder / name.replace("data/", "in/readings/")
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(text, encoding="utf-8")
            script = f"train_{library}.py"
            environ = {**os.environ, "TIDEMILL_RUN": "r1"}  # the second attempt appends to the curve
            if killed:
                ended = subprocess.run([sys.executable, "-c", KILLED.format(step=step, script=script)], cwd=folder, env=environ, check=False)
                test.assertEqual(ended.returncode, 9)
            subprocess.run([sys.executable, script], cwd=folder, env=environ, check=True)
            steps = [json.loads(line)["step"] for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
            test.assertEqual(steps, sorted(set(steps)), "no step is done twice")
            models.append((folder / "out" / "model.onnx").read_bytes())
    return models[0], models[1]
