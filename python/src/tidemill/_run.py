"""The run that this program is: its inputs, its champion, and the files that it writes."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ._champion import Champion
from ._values import column, is_missing, label, need, plain, replacing, write_text


class NoInput(KeyError):
    """An input is not there."""

    def __str__(self) -> str:
        """Return the message without the quotes of KeyError."""
        return str(self.args[0])


class Inputs(Mapping[str, pathlib.Path]):
    """The folders of the inputs by name, such as run.inputs["examples"]."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> pathlib.Path:
        """Return the folder of an input."""
        path = self._folder / name
        if name and path.is_dir():
            return path
        there = ", ".join(self) or "none"
        hint = "" if os.environ.get("TIDEMILL_IN") else "; outside a run, put its files into that folder, or set TIDEMILL_IN"
        raise NoInput(f"no input {name!r} in {self._folder}, where there is: {there}{hint}")

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the inputs."""
        if self._folder.is_dir():
            yield from sorted(p.name for p in self._folder.iterdir() if p.is_dir())

    def __len__(self) -> int:
        """Return the number of inputs."""
        return sum(1 for _ in self)

    def files(self, name: str, pattern: str = "**/*") -> List[pathlib.Path]:
        """Return the files of an input that match a pattern, sorted by path."""
        return sorted(p for p in self[name].glob(pattern) if p.is_file())

    def rows(self, name: str, pattern: str = "**/*.csv") -> List[Dict[str, str]]:
        """Read the CSV files of an input. Each row is a dict by the names in its file's first line."""
        out: List[Dict[str, str]] = []
        for file in self._some(name, pattern):
            with open(file, newline="", encoding="utf-8-sig") as f:
                out.extend(csv.DictReader(f))
        return out

    def frame(self, name: str, pattern: str = "**/*.csv", **options: Any) -> Any:
        """Read the CSV files of an input into one DataFrame of pandas. The options go to read_csv."""
        pandas = need("pandas", "pandas", "run.inputs.frame")
        frames = [pandas.read_csv(file, **options) for file in self._some(name, pattern)]
        return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)

    def outcomes(self, name: str) -> Any:
        """Read an input of outcomes into a DataFrame of pandas: a row for each answered event, in their order.

        The columns data.NAME are those of the event's data. They are empty if the event is gone. The other columns are
        those of the outcome: truth, label, score, version, group, basis and so on.
        """
        pandas = need("pandas", "pandas", "run.inputs.outcomes")
        rows: List[Dict[str, Any]] = []
        for file in self._some(name, "outcomes.ndjson"):
            with open(file, encoding="utf-8") as f:
                for row in map(json.loads, f):
                    data = (row["event"] or {}).get("data")
                    rows.append(row["outcome"] if data is None else {"data": data, **row["outcome"]})
        return pandas.json_normalize(rows)

    def _some(self, name: str, pattern: str) -> List[pathlib.Path]:
        files = self.files(name, pattern)
        if not files:
            raise FileNotFoundError(f"the input {name!r} has no file that matches {pattern!r} in {self[name]}")
        return files


class Checkpoint:
    """The folder for checkpoints. Tidemill saves its files, and the next attempt finds them there."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __fspath__(self) -> str:
        """Return the path of the folder."""
        return str(self.folder)

    def save(self, name: str, value: Any) -> None:
        """Write a file atomically: bytes as they are, and other values as JSON."""
        with self.writing(name) as part:
            part.write_bytes(value if isinstance(value, bytes) else json.dumps(plain(value)).encode())

    def load(self, name: str, default: Any = None) -> Any:
        """Read a file that save has written, or return the default if there is none."""
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return default
        try:
            return json.loads(data)
        except ValueError:
            return data

    @contextmanager
    def writing(self, name: str) -> Iterator[pathlib.Path]:
        """Give a path with the ending of the name. The file there gets the name only when it is complete.

        with run.checkpoint.writing("model.pt") as path:
            torch.save(model, path)
        """
        with replacing(self.folder / name) as part:
            yield part


class Run:
    """One run. In Tidemill the variables TIDEMILL_… say where its files are.

    Without these variables a program works in the current folder: it reads in/INPUT and
    champion/, and writes out/ and checkpoint/.
    """

    def __init__(self, environ: Optional[Mapping[str, str]] = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._metrics: Dict[str, Any] = {}
        self._curve = "a" if self.inside else "w"  # outside, the first point replaces the last curve

    def _text(self, name: str, default: str) -> str:
        return self._environ.get(name) or default

    def _folder(self, name: str, default: str) -> pathlib.Path:
        return pathlib.Path(self._text(name, default))

    @property
    def inside(self) -> bool:
        """Whether Tidemill has started this program."""
        return bool(self._environ.get("TIDEMILL_RUN"))

    @property
    def id(self) -> str:
        """The run's id; "local" outside Tidemill."""
        return self._text("TIDEMILL_RUN", "local")

    @property
    def recipe(self) -> str:
        """The recipe's name; "local" outside Tidemill."""
        return self._text("TIDEMILL_RECIPE", "local")

    @property
    def key(self) -> str:
        """The run's key; "local" outside Tidemill."""
        return self._text("TIDEMILL_KEY", "local")

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return int(self._text("TIDEMILL_ATTEMPT", "1"))

    @property
    def inputs(self) -> Inputs:
        """The folders of the inputs, by name."""
        return Inputs(self._folder("TIDEMILL_IN", "in"))

    @property
    def out(self) -> pathlib.Path:
        """The folder for the output. All its files are stored."""
        folder = self._folder("TIDEMILL_OUT", "out")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder for checkpoints, with helpers that write atomically."""
        folder = self._folder("TIDEMILL_CHECKPOINT", "checkpoint")
        folder.mkdir(parents=True, exist_ok=True)
        return Checkpoint(folder)

    @property
    def champion(self) -> Optional[Champion]:
        """The promoted version as it was when the run began; None if there is none."""
        folder = self._folder("TIDEMILL_CHAMPION", "champion")
        return Champion(folder) if folder.is_dir() and any(folder.iterdir()) else None

    @property
    def events(self) -> List[Dict[str, Any]]:
        """The CloudEvents that asked for the run, oldest first."""
        file = self._environ.get("TIDEMILL_EVENTS")
        if not file:
            return []
        with open(file, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.strip()]

    def log(self, step: float, total: Optional[float] = None, **metrics: Any) -> None:
        """Append a point to the learning curve in metrics.jsonl, which can be followed during the run."""
        line: Dict[str, Any] = {"step": plain(step)}
        if total is not None:
            line["total"] = plain(total)
        for name, value in metrics.items():
            line[name] = _gap(plain(value))
        with open(self.out / "metrics.jsonl", self._curve, encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")
        self._curve = "a"

    def metrics(self, **metrics: Any) -> None:
        """Write metrics into metrics.json, by which the version is judged. Later calls add to it."""
        for name, value in metrics.items():
            self._metrics[name] = _finite(name, plain(value))
        write_text(self.out / "metrics.json", json.dumps(self._metrics, indent=1) + "\n")

    def predictions(self, truth: Any, predicted: Any, champion: Any = None) -> None:
        """Write predictions.csv, from which Tidemill measures the model: a row for each example of the test data.

        The columns have classes or numbers. None, NaN and "" mean no answer.
        """
        table: Dict[str, Sequence[Any]] = {"truth": column(truth), "predicted": column(predicted)}
        if champion is not None:
            table["champion"] = column(champion)
        lengths = {name: len(values) for name, values in table.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of the predictions have different numbers of rows: {lengths}")
        with replacing(self.out / "predictions.csv") as part, open(part, "w", newline="", encoding="utf-8") as f:
            to = csv.writer(f)
            to.writerow(table)
            to.writerows([["" if is_missing(v) else label(v) for v in row] for row in zip(*table.values())])

    def save(self, model: Any, sample: Any, labels: Optional[Sequence[str]] = None, name: str = "") -> pathlib.Path:
        """Write a model as model.onnx and model.yaml, after a check that it answers as the original.

        The model is of scikit-learn, LightGBM, XGBoost, CatBoost, PyTorch or Keras. The sample has some
        rows of the test data, and its form decides the model's inputs: a DataFrame, or a dict of columns, gives
        one input a column, which a scorer reads from the field of that name. An array or a list of
        rows gives one input "features", and a list of texts one input "text"; name changes that.
        Labels name the classes of a model that does not know them.
        """
        from ._save import save

        return save(model, sample, labels, name, self.out)


def _gap(value: Any) -> Any:
    """Return null for a number that JSON does not have: a curve with a gap is better than none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(name: str, value: Any) -> Any:
    """Refuse NaN and infinity in a metric, because the version could not be judged."""
    if isinstance(value, dict):
        return {k: _finite(f"{name}.{k}", v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the metric {name} is {value}, and a version cannot be judged by that: leave it out, or find its cause")
    return value


run = Run()
