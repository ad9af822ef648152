"""Answers that do not end: events of a stream, and the log of a run. They continue after a cut."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple
from urllib.parse import quote

from ._http import Broken, Gateway, TidemillError, read_some


@dataclass(frozen=True)
class Tailed:
    """An event of a stream and its position; or an unreadable record and the reason."""

    id: str  # position after it in every partition; give it as after to continue there
    partition: int
    offset: int
    received: str
    event: Optional[Dict[str, Any]]
    error: str = ""


def messages(source: Iterator[bytes]) -> Iterator[Tuple[str, str, str]]:
    """Read server-sent events: the id, the type and the data of each block. A block that is cut off is dropped."""
    last, kind = "", ""
    data: List[str] = []
    for raw in source:
        line = raw.rstrip(b"\r").decode()
        if not line:
            yield last, kind, "\n".join(data)
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id":
            last = value


def tail(gateway: Gateway, stream: str, query: Dict[str, Any], after: Optional[str]) -> Iterator[Tailed]:
    """Yield the events of a stream, each once. A new request continues after the last one."""
    path = f"/api/v1/streams/{quote(stream, safe='')}/events"
    left, retrier = query.get("limit"), gateway.retrier()
    while left is None or left > 0:
        headers = {"Last-Event-ID": after} if after else {}
        try:
            with gateway.open("GET", path, {**query, "limit": left}, None, headers) as answer:
                for last, kind, data in messages(_with_ends(read_some(answer))):
                    retrier = gateway.retrier()
                    after = last or after
                    if kind == "end":
                        return
                    if data:
                        left = None if left is None else left - 1
                        yield _tailed(last, json.loads(data))
            raise Broken("the answer ended before its end")
        except (Broken, TidemillError) as e:
            gateway.fail(retrier, e)


def _with_ends(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Cut pieces into lines, without a last line that is incomplete."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def _tailed(last: str, data: Dict[str, Any]) -> Tailed:
    return Tailed(last, data["partition"], data["offset"], data.get("received", ""), data.get("event"), data.get("error", ""))


def follow_log(gateway: Gateway, run: str, follow: bool, attempt: Optional[int], part: str) -> Iterator[str]:
    """Yield the lines of a run's log."""
    path, retrier = f"/api/v1/runs/{quote(run, safe='')}/log", gateway.retrier()
    got, rest = 0, b""
    while True:
        try:
            query = {"follow": follow or None, "attempt": attempt, "part": part, "skip": got or None}
            with gateway.open("GET", path, query) as answer:
                attempt = int(answer.headers.get("Tidemill-Attempt") or attempt or 1)
                for piece in read_some(answer):
                    got, retrier = got + len(piece), gateway.retrier()
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")
            return
        except (Broken, TidemillError) as e:
            gateway.fail(retrier, e)
