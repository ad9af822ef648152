"""A client and a server that fails: repeats, problems, redirects, and answers that are cut."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, List
from unittest import mock

from tidemill import Client, TidemillError, _transfer, event
from tidemill._values import write_text

Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, body: Any = None, media: str = "application/json", **headers: str) -> Answer:
    def write(h: BaseHTTPRequestHandler) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        h.send_response(status)
        for name, value in headers.items():
            h.send_header(name.replace("_", "-"), value)
        h.send_header("Content-Type", media)
        h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        h.wfile.write(data)

    return write


def cut(data: bytes, whole: bool = False, **headers: str) -> Answer:
    """Answer with one chunk, and close the connection without the last one, unless whole."""
    def write(h: BaseHTTPRequestHandler) -> None:
        h.send_response(200)
        for name, value in headers.items():
            h.send_header(name.replace("_", "-"), value)
        h.send_header("Transfer-Encoding", "chunked")
        h.end_headers()
        h.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if whole:
            h.wfile.write(b"0\r\n\r\n")
        h.close_connection = True

    return write


PROBLEM = "application/problem+json"


class WithServer(unittest.TestCase):
    """The server gives the answers in turn, and keeps the requests."""

    def serve(self, *answers: Answer) -> Client:
        self.requests: List[BaseHTTPRequestHandler] = []
        self.bodies: List[bytes] = []
        left = list(answers)
        test = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                test.requests.append(self)
                test.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                left.pop(0)(self)

            do_GET = do_POST = handle_any

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return Client(f"http://127.0.0.1:{server.server_port}", token="secret", patience=5)

    def test_a_failure_that_passes_is_repeated(self) -> None:
        client = self.serve(answer(503, {"title": "t", "detail": "d"}, PROBLEM), cut(b"{"), answer(200, {"scorers": [1]}))
        self.assertEqual(client.scorers(), [1])
        self.assertEqual([r.headers["Authorization"] for r in self.requests], ["Bearer secret"] * 3)

    def test_score_waits_for_a_version(self) -> None:
        none = answer(404, {"type": "https://tidemill.dev/problems/unknown-model", "title": "t", "detail": "has no champion"}, PROBLEM)
        first, second = (answer(200, {"model": "m/a", "version": n, "label": "b"}) for n in (1, 2))
        client = self.serve(none, first, second, first, none)
        self.assertEqual(client.score("s", {"x": 1}, "a", version=2)["version"], 2)
        self.assertEqual(client.score("s", {"x": 1}, "a")["version"], 1)
        with self.assertRaises(TidemillError) as caught:
            client.score("s", {"x": 1}, "a")
        self.assertEqual(caught.exception.status, 404)
        self.assertEqual(self.bodies, [b'{"x": 1}'] * 5)

    def test_score_does_not_wait_for_ever(self) -> None:
        for late in (answer(200, {"model": "m/a", "version": 1}), answer(404, {"type": "…/unknown-model", "detail": "version 1"}, PROBLEM)):
            client = self.serve(late)
            client = Client(client.url, patience=0)
            with self.assertRaisesRegex(TidemillError, "version 1"):
                client.score("s", {}, "a", version=2)
        with self.assertRaises(TidemillError) as caught:
            self.serve(answer(404, {"type": "…/unknown-scorer", "detail": "d"}, PROBLEM)).score("s", {}, version=2)
        self.assertEqual(caught.exception.status, 404)

    def test_repeats_are_the_same_events(self) -> None:
        stored = {"events": [{"id": "a", "status": 202, "position": {"stream": "s", "partition": 1, "offset": 2}, "repeated": True}]}
        client = self.serve(answer(503, {}, PROBLEM), answer(202, stored))
        got = client.publish(event("x", 1))
        self.assertEqual(self.bodies[0], self.bodies[1])
        self.assertEqual((got[0].stream, got[0].partition, got[0].offset, got[0].repeated), ("s", 1, 2, True))

    def test_a_failed_batch_says_what_is_published(self) -> None:
        stored = {"events": [{"id": str(i), "status": 202, "position": {"stream": "s", "partition": 0, "offset": i}} for i in range(1000)]}
        problem = {"title": "invalid", "status": 400, "detail": "one is invalid", "events": []}
        client = self.serve(answer(202, stored), answer(400, problem, PROBLEM))
        with self.assertRaisesRegex(TidemillError, "one is invalid; the 1000 events before this batch are published") as caught:
            client.publish([event("x", i) for i in range(1001)])
        self.assertEqual([s.offset for s in caught.exception.stored], list(range(1000)))

    def test_the_files_of_one_champion(self) -> None:
        data = b"model"
        file = {"path": "model.onnx", "size": len(data), "digest": hashlib.sha256(data).hexdigest()}
        client = self.serve(answer(200, {"all": [{"number": 3}]}), answer(200, {"files": [file]}), answer(200, data, "application/octet-stream"))
        with tempfile.TemporaryDirectory() as folder:
            client.models.get("fraud/shop", folder)
        self.assertEqual([r.path.rpartition("version=")[2] for r in self.requests], ["champion", "3", "3&path=model.onnx"])

    def test_a_problem_is_raised_at_once(self) -> None:
        problem = {"type": "p", "title": "no such scorer", "status": 404, "detail": "scorer x: there is none"}
        client = self.serve(answer(404, problem, PROBLEM))
        with self.assertRaises(TidemillError) as caught:
            client.scorers()
        e = caught.exception
        self.assertEqual((e.status, e.title, e.detail, str(e), e.problem), (404, "no such scorer", problem["detail"], problem["detail"], problem))

    def test_a_page_of_something_else_is_shown(self) -> None:
        client = self.serve(answer(404, b"<html>not me", "text/html"))
        with self.assertRaisesRegex(TidemillError, "404: '<html>not me'"):
            client.scorers()

    def test_patience_ends(self) -> None:
        with self.assertRaisesRegex(TidemillError, "http://127.0.0.1:1 does not answer"):
            Client("http://127.0.0.1:1", patience=0.2).scorers()

    def test_no_address(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(TidemillError, "start it with tidemill up"):
                Client(folder=folder)
            with open(os.path.join(folder, "addresses.json"), "w", encoding="utf-8") as f:
                json.dump({"url": "http://192.0.2.1:8080"}, f)
            with self.assertRaisesRegex(TidemillError, "owner would get the token"):
                Client(folder=folder, token="secret")

    def test_a_stream_continues_after_cuts(self) -> None:
        def block(n: int) -> bytes:
            return f'id: at{n}\ndata: {{"partition": 0, "offset": {n}, "event": {{"id": "e{n}"}}}}\n\n'.encode()

        client = self.serve(cut(b"id: at0\n\n"), cut(block(1) + block(2) + block(3)[:20]), answer(503, {}, PROBLEM),
                            cut(block(3) + b": still here\n\n", whole=True), cut(block(4) + b"event: end\nid: at4\ndata: {}\n\n"))
        self.assertEqual([t.event["id"] for t in client.tail("s", "beginning") if t.event], ["e1", "e2", "e3", "e4"])
        self.assertEqual([r.headers["Last-Event-ID"] for r in self.requests], [None, "at0", "at2", "at2", "at3"])

    def test_a_limit_counts_across_cuts(self) -> None:
        one = b'id: 1\ndata: {"partition": 0, "offset": 1, "event": {}}\n\n'
        client = self.serve(cut(one), cut(one, whole=True))
        self.assertEqual(len(list(client.tail("s", limit=2))), 2)
        self.assertIn("limit=1", self.requests[1].path)

    def test_a_log_continues_after_a_cut(self) -> None:
        client = self.serve(cut("one\ntwö".encode()[:-1], Tidemill_Attempt="2"), cut("ö\nthree".encode()[1:], whole=True, Tidemill_Attempt="2"))
        self.assertEqual(list(client.runs.follow("r1")), ["one", "twö", "three"])
        self.assertIn("attempt=2", self.requests[1].path)
        self.assertIn("skip=7", self.requests[1].path)

    def test_a_problem_that_is_cut_is_repeated(self) -> None:
        def broken(text: bytes, **headers: str) -> Answer:
            def write(h: BaseHTTPRequestHandler) -> None:
                h.send_response(503)
                for name, value in {"Content-Type": PROBLEM, **headers}.items():
                    h.send_header(name.replace("_", "-"), value)
                h.end_headers()
                h.wfile.write(text)
                h.close_connection = True

            return write

        client = self.serve(broken(b'{"title": "the gate', Content_Length="100"), broken(b"40\r\n{", Transfer_Encoding="chunked"),
                            answer(503, [], PROBLEM), answer(200, {"scorers": []}))
        self.assertEqual(client.scorers(), [])

    def test_nothing_of_a_folder_is_left_out(self) -> None:
        client = self.serve()
        for link in ("folder", "nothing"):
            with tempfile.TemporaryDirectory() as folder:
                os.mkdir(os.path.join(folder, "folder"))
                with open(os.path.join(folder, "folder", "a.csv"), "w", encoding="utf-8") as f:
                    f.write("1")
                os.symlink(link, os.path.join(folder, "link"))
                with self.assertRaisesRegex(ValueError, "link"):
                    client.data.put("d", folder)

    def test_a_question_is_short(self) -> None:
        large = [{"digest": str(i), "size": _transfer.PART} for i in range(100)]
        small = [{"digest": str(i), "size": 1} for i in range(2 * _transfer.PAGE)]
        for objects, want in ((large, [32, 32, 32, 4]), (small, [_transfer.PAGE] * 2), ([{"digest": "", "size": 3 << 30}], [1]), ([], [])):
            asked = list(_transfer._questions(objects))
            self.assertEqual([len(some) for some in asked], want)
            self.assertEqual(sum(asked, []), objects)

    def test_a_file_is_replaced_without_a_change_of_the_umask(self) -> None:
        was = os.umask(0o027)
        self.addCleanup(os.umask, was)
        with tempfile.TemporaryDirectory() as folder, mock.patch("os.umask", side_effect=AssertionError("it is that of all threads")):
            write_text(os.path.join(folder, "a"), "1")
            self.assertEqual(os.stat(os.path.join(folder, "a")).st_mode & 0o777, 0o640)
            self.assertEqual(os.listdir(folder), ["a"])

    def test_a_store_gets_no_token(self) -> None:
        data = b"hello"
        file = {"path": "a.txt", "size": 5, "digest": hashlib.sha256(data).hexdigest()}
        listing = {"commit": {"id": "c"}, "files": [file]}
        client = self.serve(answer(200, listing), answer(307, b"", Location="/signed?x=1"), answer(200, data))
        with tempfile.TemporaryDirectory() as folder:
            paths = client.data.get("d", folder)
            self.assertEqual(paths[0].read_bytes(), data)
        self.assertEqual([r.headers["Authorization"] for r in self.requests], ["Bearer secret", "Bearer secret", None])

    def test_damaged_bytes_are_fetched_again(self) -> None:
        file = {"path": "a.txt", "size": 5, "digest": hashlib.sha256(b"hello").hexdigest()}
        client = self.serve(answer(200, {"commit": {"id": "c"}, "files": [file]}), answer(200, b"jello"), answer(200, b"hello"))
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(client.data.get("d", folder)[0].read_bytes(), b"hello")
            self.assertEqual(os.listdir(folder), ["a.txt"])

    def test_a_long_download_survives_many_cuts(self) -> None:
        data = b"hello, world"
        file = {"path": "a.txt", "size": len(data), "digest": hashlib.sha256(data).hexdigest()}
        client = self.serve(answer(200, {"files": [file]}), *[cut(data[:n]) for n in range(1, 6)], answer(200, data))
        client._gateway._patience = 0.2
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(client.data.get("d", folder)[0].read_bytes(), data)

    def test_damaged_bytes_end_a_download(self) -> None:
        file = {"path": "a.txt", "size": 5, "digest": hashlib.sha256(b"hello").hexdigest()}
        client = self.serve(answer(200, {"files": [file]}), *[answer(200, b"jello")] * 20)
        client._gateway._patience = 0.2
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(TidemillError, "other bytes than its digest"):
            client.data.get("d", folder)

    def test_files_of_a_version_and_of_a_run(self) -> None:
        data = b"the model"
        file = {"path": "deep/model.onnx", "size": 9, "digest": hashlib.sha256(data).hexdigest(), "executable": True}
        client = self.serve(answer(200, {"files": [file], "next": "n"}), answer(200, {"files": []}), answer(200, data),
                            answer(200, {"files": [file]}), answer(503, {}, PROBLEM), answer(200, data))
        with tempfile.TemporaryDirectory() as folder:
            for paths in (client.models.get("fraud/a b", folder, 3), client.runs.get("r1", folder)):
                self.assertEqual([p.read_bytes() for p in paths], [data])
                self.assertTrue(os.access(paths[0], os.X_OK))
        self.assertEqual([r.path for r in self.requests], [
            "/api/v1/model/files?model=fraud%2Fa+b&version=3", "/api/v1/model/files?model=fraud%2Fa+b&version=3&after=n",
            "/api/v1/model/file?model=fraud%2Fa+b&version=3&path=deep%2Fmodel.onnx", "/api/v1/runs/r1/files",
            *["/api/v1/runs/r1/file?path=deep%2Fmodel.onnx"] * 2])

    def test_files_stay_in_their_folder(self) -> None:
        for path in ("../evil", "/evil", "a/../../evil", ""):
            client = self.serve(answer(200, {"commit": {"id": "c"}, "files": [{"path": path, "size": 0, "digest": "0"}]}))
            with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(ValueError, "outside"):
                client.data.get("d", folder)


if __name__ == "__main__":
    unittest.main()
