"""Requests to a gateway: repeated while a failure may pass, and problems as exceptions."""

from __future__ import annotations

import http.client
import ipaddress
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

TEMPORARY = (408, 429, 502, 503, 504)
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
IDLE = 60.0  # seconds without a byte after which an answer counts as broken; gateways send one every 15

Query = Mapping[str, Any]


class TidemillError(Exception):
    """A request has failed. Without an answer of the gateway, status is 0."""

    def __init__(self, status: int, title: str, detail: str = "", problem: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(detail or title)
        self.status = status
        self.title = title
        self.detail = detail
        self.after = 0.0  # seconds to wait before a repeat, as the gateway asks
        self.problem: Dict[str, Any] = problem or {}  # the whole problem document of the gateway
        self.stored: List[Any] = []  # places of the events that publish has stored in earlier batches


class Broken(Exception):
    """The connection failed, or was cut. The request can be repeated."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is not followed, because the token would be sent along."""

    def redirect_request(self, *args: Any) -> None:
        """Refuse it."""
        return None


class Gateway:
    """The HTTP side of a gateway. All its requests can be repeated safely."""

    def __init__(self, url: str, token: Optional[str], patience: float, hint: str = "") -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._patience = patience
        self._hint = hint
        handlers: List[urllib.request.BaseHandler] = [_NoRedirects()]
        if is_loopback(url):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, query: Optional[Query] = None, body: Any = None,
             headers: Optional[Mapping[str, str]] = None) -> Any:
        """Send a request with JSON, and return the answer's."""
        data = None if body is None else json.dumps(body).encode()
        more = {} if body is None else {"Content-Type": "application/json"}
        answer = self.send(method, path, query, data, {**more, **(headers or {})})
        return json.loads(answer) if answer else None

    def send(self, method: str, path: str, query: Optional[Query] = None, body: Optional[bytes] = None,
              headers: Optional[Mapping[str, str]] = None) -> bytes:
        """Send a request, and return the answer's body."""
        retrier = self.retrier()
        while True:
            try:
                with self.open(method, path, query, body, headers) as answer:
                    return read_whole(answer)
            except (Broken, TidemillError) as e:
                self.fail(retrier, e)

    def _failed(self, e: Exception) -> TidemillError:
        """Return the error of requests that found no gateway."""
        if isinstance(e, TidemillError):
            return e
        return TidemillError(0, "no answer", f"{self.url} does not answer: {e}{self._hint}")

    def retrier(self) -> "Retrier":
        """Return a new retrier of a request."""
        return Retrier(self._patience)

    def fail(self, retrier: "Retrier", e: Exception) -> None:
        """Wait before a repeated request, or raise the failure."""
        retrier.wait(e, self._failed)

    def open(self, method: str, path: str, query: Optional[Query] = None, body: Optional[bytes] = None,
             headers: Optional[Mapping[str, str]] = None) -> http.client.HTTPResponse:
        """Send one request, and return its successful answer, to be read and closed."""
        request = urllib.request.Request(self.url + path + _encoded(query), body, dict(headers or {}), method=method)
        request.add_header("User-Agent", "tidemill-python")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=IDLE)
            return answer
        except urllib.error.HTTPError as e:
            if e.code in (302, 303, 307, 308) and method == "GET":
                return self._elsewhere(e.headers["Location"])
            raise problem_of(e) from None
        except (OSError, http.client.HTTPException) as e:
            raise Broken(str(getattr(e, "reason", e))) from e

    def _elsewhere(self, url: str) -> http.client.HTTPResponse:
        """Get an object directly from its store. The store gets no token."""
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(urllib.parse.urljoin(self.url, url), timeout=IDLE)
            return answer
        except (OSError, http.client.HTTPException) as e:
            raise Broken("the object store: " + str(getattr(e, "reason", e))) from e


class Retrier:
    """Waits between the repeats of a request, longer each time, until its patience ends."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._until: Optional[float] = None
        self._wait = FIRST_WAIT

    def wait(self, e: Exception, error: Callable[[Exception], TidemillError]) -> None:
        """Wait after a failure. Raise it if it will not pass, or after too long."""
        if isinstance(e, TidemillError) and e.status not in TEMPORARY:
            raise e
        now = time.monotonic()
        self._until = self._until or now + self._patience
        wait = max(self._wait * random.uniform(0.5, 1), getattr(e, "after", 0.0))
        if now + wait > self._until:
            raise error(e) from None
        time.sleep(wait)
        self._wait = min(2 * self._wait, LONGEST_WAIT)


def read_whole(answer: http.client.HTTPResponse) -> bytes:
    """Read a body to its end."""
    try:
        return answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise Broken(str(e)) from e


def read_some(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield a body as it arrives. A body that is cut off raises Broken."""
    while True:
        try:
            some = answer.read1(1 << 16)
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise Broken(str(e)) from e
        if not some:
            return
        yield some


def problem_of(e: urllib.error.HTTPError) -> TidemillError:
    """Return the error of an unsuccessful answer."""
    text = b""
    problem: Dict[str, Any] = {}
    try:  # the status counts, even if the body is cut off
        text = e.read(1 << 20)
        if e.headers.get_content_type() == "application/problem+json":
            problem = dict(json.loads(text))
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        pass
    detail = problem.get("detail", "") if problem else f"the answer is {e.code}: {text[:200].decode(errors='replace')!r}"
    refused = next((a["problem"] for a in problem.get("events", []) if "problem" in a), None)
    if refused:
        detail += f"; the first is {refused['detail']}"
    error = TidemillError(e.code, problem.get("title", "request failed"), detail, problem)
    after = e.headers.get("Retry-After", "")
    if after.isdigit():
        error.after = float(after)
    return error


def _encoded(query: Optional[Query]) -> str:
    """Return a query without the parameters that are None or empty."""
    some = {k: "true" if v is True else "false" if v is False else v for k, v in (query or {}).items() if v is not None and v != ""}
    return "?" + urllib.parse.urlencode(some) if some else ""


def is_loopback(url: str) -> bool:
    """Report whether a URL is of this machine."""
    try:
        return ipaddress.ip_address(urllib.parse.urlsplit(url).hostname or "").is_loopback
    except ValueError:
        return False
