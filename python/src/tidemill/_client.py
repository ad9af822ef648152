"""Call a Tidemill from a program: events, data, runs, models and scorers."""

from __future__ import annotations

import io
import json
import os
import pathlib
import secrets
import time
import uuid
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote

from . import _stream, _transfer
from ._http import Gateway, TidemillError, is_loopback
from ._stream import Tailed
from ._values import PathLike, as_json, need

Event = Dict[str, Any]

BATCH = 1000  # events in one request
BATCH_BYTES = 8 << 20  # bytes of these events; a gateway takes 16 MiB
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Stored:
    """The place of a published event. It was there before if repeated is true."""

    id: str
    stream: str
    partition: int
    offset: int
    repeated: bool


def event(type: str, data: Any = None, subject: str = "", source: str = "/python", **attributes: str) -> Event:
    """Make a CloudEvent with a new id. The subject is the key, such as a shop's name. Dates in the data become text."""
    made = {"specversion": "1.0", "id": uuid.uuid4().hex, "source": source, "type": type, **attributes}
    if subject:
        made["subject"] = subject
    if data is not None:
        made["data"] = as_json(data)
    return made


class Client:
    """A connection to a gateway.

    The address is url, else TIDEMILL_URL, else that of the tidemill up whose data folder is
    folder, .tidemill by default. The token is token, else TIDEMILL_TOKEN. Failures that may pass
    are retried for patience seconds.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, folder: PathLike = ".tidemill",
                 patience: float = 15.0) -> None:
        hint = ""
        url = url or os.environ.get("TIDEMILL_URL")
        token = token or os.environ.get("TIDEMILL_TOKEN")
        if not url:
            url = _address(pathlib.Path(folder))
            hint = f"; that address is from {folder}/addresses.json: does tidemill up still run?"
            if token and not is_loopback(url):
                raise TidemillError(0, "foreign address", f"{folder} has the address {url}, whose owner would get the token: give it as url if it is yours")
        self._gateway = Gateway(url, token, patience, hint)
        self.url = self._gateway.url
        self.data = Data(self._gateway)
        self.runs = Runs(self._gateway)
        self.models = Models(self._gateway)

    def publish(self, events: Union[Event, Sequence[Event]], stream: Optional[str] = None) -> List[Stored]:
        """Publish one CloudEvent or many, and return their places. Missing attributes are filled in.

        An event goes to the stream that claims its type, or to the given one. A request has up to 1,000
        events. An error has the answers to those of its request as problem["events"], and the places of all
        events before them as stored.
        """
        all_ = [_filled(e) for e in ([events] if isinstance(events, dict) else events)]
        path = f"/streams/{quote(stream, safe='')}" if stream else "/events"
        out: List[Stored] = []
        for body in _bodies(all_):
            try:
                answer = self._gateway.send("POST", path, None, body, {"Content-Type": "application/cloudevents-batch+json"})
            except TidemillError as e:
                if out:
                    e.args, e.stored = (f"{e}; the {len(out)} events before this batch are published",), out
                raise
            out.extend(_stored(a) for a in json.loads(answer)["events"])
        return out

    def tail(self, stream: str, from_: str = "end", where: str = "", limit: Optional[int] = None, follow: bool = True,
             after: Optional[str] = None) -> Iterator[Tailed]:
        """Yield the events of a stream, each once and in order, also across broken connections.

        from_ is "beginning", "end", a time such as "-1h", or an offset. after is the id of a
        Tailed, and continues behind it. Without follow it ends at the present end of the stream.
        """
        query = {"from": None if after else from_, "where": where, "limit": limit, "follow": None if follow else False}
        return _stream.tail(self._gateway, stream, query, after)

    def score(self, scorer: str, data: Any, key: str = "", version: Optional[int] = None) -> Dict[str, Any]:
        """Let the champion of a key answer to the data of an event. Nothing is published.

        A scorer takes up a champion a moment after its promotion. With version, wait for the answer of
        that version, for patience seconds at most.
        """
        path, retrier = f"/api/v1/scorers/{quote(scorer, safe='')}/score", self._gateway.retrier()
        while True:
            try:
                answer: Dict[str, Any] = self._gateway.ask("POST", path, {"key": key}, as_json(data))
                if version in (None, answer["version"]):
                    return answer
                late = TidemillError(503, "not yet", f"version {answer['version']} of {answer['model']} answers, not {version}")
            except TidemillError as e:
                if version is None or not e.problem.get("type", "").endswith("/unknown-model"):
                    raise
                late = TidemillError(503, e.title, e.detail, e.problem)
            self._gateway.fail(retrier, late)

    def scorers(self) -> List[Dict[str, Any]]:
        """Return the state of all scorers: their rates, and how many events wait."""
        return list(self._gateway.ask("GET", "/api/v1/scorers")["scorers"])

    def why(self, of: str) -> Dict[str, Any]:
        """Return the causes and consequences of a thing, such as model/fraud/shop@2, run/ID or event/ID."""
        graph: Dict[str, Any] = self._gateway.ask("GET", "/api/v1/why", {"of": of})
        return graph


class Data:
    """The datasets."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def put(self, dataset: str, source: Any, branch: str = "main", message: str = "", replace: bool = False,
            name: str = "data.csv") -> Dict[str, Any]:
        """Commit a folder, a file, or a DataFrame as the CSV file name, and return the commit.

        With replace, other files are removed. The answer has unchanged if there is nothing new.
        """
        files = [_frame(source, name)] if hasattr(source, "to_csv") else _transfer.folder(pathlib.Path(source))
        described = _transfer.put(self._gateway, files)
        asked = {"dataset": dataset, "branch": branch, "request": secrets.token_hex(16), "message": message, "replace": replace}
        body = "".join(json.dumps(line) + "\n" for line in [asked, *described]).encode()
        answer = self._gateway.send("POST", "/api/v1/data/commits", None, body, {"Content-Type": "application/x-ndjson"})
        commit: Dict[str, Any] = json.loads(answer)
        return commit

    def get(self, dataset: str, folder: PathLike, at: str = "main") -> List[pathlib.Path]:
        """Download the files of a branch or a commit into a folder, and return their paths."""
        return _transfer.get(self._gateway, self.files(dataset, at), pathlib.Path(folder))

    def frame(self, dataset: str, at: str = "main", suffix: str = ".csv") -> Any:
        """Return the CSV files of a branch or a commit as one DataFrame of pandas."""
        pandas = need("pandas", "pandas", "data.frame")
        frames = []
        for file in self.files(dataset, at):
            if file["path"].endswith(suffix):
                parts = file.get("parts") or [file]
                text = b"".join(self._gateway.send("GET", "/api/v1/data/object", {"digest": p["digest"]}) for p in parts)
                frames.append(pandas.read_csv(io.BytesIO(text)))
        if not frames:
            raise FileNotFoundError(f"{dataset} at {at} has no file that ends with {suffix}")
        return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)

    def files(self, dataset: str, at: str = "main") -> List[Dict[str, Any]]:
        """Return the files of a branch or a commit: their paths, sizes and digests."""
        return _pages(self._gateway, "/api/v1/data/files", {"dataset": dataset, "at": at}, "files")

    def list(self, prefix: str = "") -> List[Dict[str, Any]]:
        """Return the datasets and their branches."""
        return [*self._gateway.ask("GET", "/api/v1/data/datasets", {"prefix": prefix})["datasets"]]


class Runs:
    """The runs."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def start(self, recipe: str, key: str, event: Optional[Event] = None) -> str:
        """Start a run of a recipe for a key, and return its id. A run that waits already takes the request in."""
        body: Dict[str, Any] = {"recipe": recipe, "keys": [key]}
        if event is not None:
            body["event"] = _filled(event)
        done = self._gateway.ask("POST", "/api/v1/runs", None, body, {"Idempotency-Key": secrets.token_hex(16)})["runs"][0]
        if done.get("refused"):
            raise TidemillError(200, "refused", f"no run of {recipe} for {key}: {done['done']}")
        return str(done["run"])

    def list(self, recipe: str = "", key: str = "", state: str = "", limit: int = 50) -> List[Dict[str, Any]]:
        """Return runs, the newest first."""
        return [*self._gateway.ask("GET", "/api/v1/runs", {"recipe": recipe, "key": key, "state": state, "limit": limit})["runs"]]

    def show(self, run: str) -> Dict[str, Any]:
        """Return everything that is known about a run."""
        shown: Dict[str, Any] = self._gateway.ask("GET", f"/api/v1/runs/{quote(run, safe='')}")
        return shown

    def log(self, run: str, attempt: Optional[int] = None, part: str = "") -> Iterator[str]:
        """Yield the lines of a run's log as it is now."""
        return _stream.follow_log(self._gateway, run, False, attempt, part)

    def follow(self, run: str, attempt: Optional[int] = None, part: str = "") -> Iterator[str]:
        """Yield the lines of a run's log until the run has ended."""
        return _stream.follow_log(self._gateway, run, True, attempt, part)

    def wait(self, run: str, timeout: Optional[float] = None, every: float = 0.5) -> Dict[str, Any]:
        """Wait until a run has ended, and return it. Raise TimeoutError if that takes too long."""
        began = time.monotonic()
        while True:
            shown = self.show(run)
            if shown["state"] in ENDED:
                return shown
            if timeout is not None and time.monotonic() - began > timeout:
                raise TimeoutError(f"run {run} is {shown['state']} after {timeout:g} s: {shown.get('waits', '')}".rstrip(": "))
            time.sleep(every)

    def curve(self, run: str) -> List[Dict[str, Any]]:
        """Return the learning curve of a run: step and metrics, as Tidemill has sampled them up to now.

        All points that the run has logged are in its output, in the file metrics.jsonl.
        """
        shown = self.show(run)
        query = {"from": shown["asking"], "where": f"run = '{shown['id']}'", "follow": False}
        points = (t.event["data"] for t in _stream.tail(self._gateway, "progress", query, None) if t.event)
        return [{"step": p["step"], **p.get("metrics", {})} for p in points]

    def cancel(self, run: str, reason: str = "") -> Dict[str, Any]:
        """Cancel a run."""
        done: Dict[str, Any] = self._gateway.ask("POST", "/api/v1/runs/cancel", None, {"runs": [run], "reason": reason})["runs"][0]
        return done

    def get(self, run: str, folder: PathLike) -> List[pathlib.Path]:
        """Download the files that a run has made into a folder, and return their paths."""
        return _get_files(self._gateway, f"/api/v1/runs/{quote(run, safe='')}", {}, folder)


class Models:
    """The models and their versions. A version is a number, "champion", "previous" or "newest"."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def list(self, prefix: str = "", recipe: str = "", key: str = "") -> List[Dict[str, Any]]:
        """Return the models."""
        return _pages(self._gateway, "/api/v1/models", {"prefix": prefix, "recipe": recipe, "key": key}, "models")

    def show(self, model: str) -> Dict[str, Any]:
        """Return a model and its versions, the newest first."""
        shown: Dict[str, Any] = self._gateway.ask("GET", "/api/v1/model", {"model": model})
        return shown

    def version(self, model: str, version: Union[int, str] = "champion") -> Dict[str, Any]:
        """Return one version: its state, its judgement and, as measured, its figures."""
        found: Dict[str, Any] = self._gateway.ask("GET", "/api/v1/model", {"model": model, "version": str(version)})["all"][0]
        return found

    def confusion(self, model: str, version: Union[int, str] = "champion") -> Dict[str, Dict[str, int]]:
        """Return the confusion matrix of a version: how many examples of a class (outer) were predicted as each class."""
        figures = (self.version(model, version).get("measured") or {}).get("measured")
        if not figures:
            raise LookupError(f"{model} version {version} was not measured: its run wrote no predictions.csv with classes")
        labels = [c["label"] for c in figures["classes"]]
        matrix = {truth: dict.fromkeys(labels, 0) for truth in labels}
        for cell in figures["cells"]:
            matrix[labels[cell["truth"]]][labels[cell["predicted"]]] = cell["count"]
        return matrix

    def compare(self, model: str, a: Union[int, str] = "champion", b: Union[int, str] = "newest") -> List[Dict[str, Any]]:
        """Return the metrics of two versions side by side: name, a, b and b - a.

        same is true if both figures are of the same data, because the run of b has measured a, too.
        """
        was, is_ = self.version(model, a), self.version(model, b)
        of_a, of_b = was.get("measured") or {}, is_.get("measured") or {}
        beside = of_b.get("champion") or {}
        same = beside.get("metrics", {}) if beside.get("version") == was["number"] else {}
        figures = {**of_a.get("metrics", {}), **same}
        rows = []
        for name in sorted({*figures, *of_b.get("metrics", {})}):
            x, y = figures.get(name), of_b.get("metrics", {}).get(name)
            apart = None if x is None or y is None else y - x
            rows.append({"name": name, "a": x, "b": y, "difference": apart, "same": name in same})
        return rows

    def promote(self, model: str, version: Union[int, str], reason: str = "", force: bool = False) -> Dict[str, Any]:
        """Make a version the champion. With force it may be one that its gate has refused."""
        return self._change("promote", {"model": model, "version": self._number(model, version), "reason": reason, "force": force})

    def rollback(self, model: str, version: Union[int, str] = "previous", reason: str = "") -> Dict[str, Any]:
        """Make the previous champion, or a named one, the champion again."""
        number = 0 if version == "previous" else self._number(model, version)
        return self._change("rollback", {"model": model, "version": number, "reason": reason})

    def get(self, model: str, folder: PathLike, version: Union[int, str] = "champion") -> List[pathlib.Path]:
        """Download the files of a version into a folder, and return their paths."""
        query = {"model": model, "version": self._number(model, version)}  # the champion may change during the download
        return _get_files(self._gateway, "/api/v1/model", query, folder)

    def _number(self, model: str, version: Union[int, str]) -> int:
        return version if isinstance(version, int) else int(self.version(model, version)["number"])

    def _change(self, what: str, body: Mapping[str, Any]) -> Dict[str, Any]:
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        done: Dict[str, Any] = self._gateway.ask("POST", f"/api/v1/model/{what}", None, body, headers)
        if done.get("refused"):
            raise TidemillError(200, "refused", done["done"], done)
        return done


def _address(folder: pathlib.Path) -> str:
    """Return the gateway's address that tidemill up has written into its data folder."""
    file = folder / "addresses.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["url"])
    except FileNotFoundError:
        raise TidemillError(0, "no gateway", f"no tidemill up runs on the data folder {folder}, and neither url nor TIDEMILL_URL is given: "
                            "start it with tidemill up, or give an address") from None


def _filled(given: Event) -> Event:
    """Return an event with all attributes that CloudEvents require."""
    if "type" not in given:
        raise ValueError(f"an event needs a type: {given!r}")
    filled = {"specversion": "1.0", "id": uuid.uuid4().hex, "source": "/python", **given}
    if "data" in filled:
        filled["data"] = as_json(filled["data"])
    return filled


def _bodies(events: Sequence[Event]) -> Iterator[bytes]:
    """Put events together that one request may have."""
    some: List[str] = []
    size = 0
    for text in map(json.dumps, events):
        if some and (len(some) == BATCH or size + len(text) > BATCH_BYTES):
            yield f"[{','.join(some)}]".encode()
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield f"[{','.join(some)}]".encode()


def _stored(answer: Mapping[str, Any]) -> Stored:
    at = answer.get("position") or {}
    return Stored(answer.get("id", ""), at.get("stream", ""), at.get("partition", -1), at.get("offset", -1), bool(answer.get("repeated")))


def _frame(frame: Any, name: str) -> _transfer.Upload:
    data = frame.to_csv(index=False).encode()
    return _transfer.Upload(name, lambda: io.BytesIO(data))


def _pages(gateway: Gateway, path: str, query: Dict[str, Any], what: str) -> List[Dict[str, Any]]:
    """Return all pages of a list. Pages of files are of one commit."""
    out: List[Dict[str, Any]] = []
    after = ""
    while True:
        page = gateway.ask("GET", path, {**query, "after": after})
        out.extend(page.get(what) or [])
        after = page.get("next", "")
        if not after:
            return out
        if "commit" in page:
            query = {**query, "at": page["commit"]["id"]}


def _get_files(gateway: Gateway, path: str, query: Dict[str, Any], folder: PathLike) -> List[pathlib.Path]:
    """Download the files of a version or a run, one by one."""
    out = []
    for file in _pages(gateway, path + "/files", query, "files"):
        to = _transfer.place(pathlib.Path(folder), file["path"])
        _transfer.fetch(gateway, file, to, [(path + "/file", {**query, "path": file["path"]})])
        out.append(to)
    return out
