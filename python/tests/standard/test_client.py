"""A client and a real tidemill up: the whole loop, with this Python as the trainer."""

from __future__ import annotations

import datetime
import os
import pathlib
import socket
import sys
import tempfile
import threading
import unittest

from upped import IDENTITY, Up, eventually

from tidemill import Client, TidemillError, event

CONFIG = f"""
version: 1
recipes:
  mean:
    when: {{type: new-data, where: "dataset LIKE 'shops/%'", debounce: 500ms}}
    inputs: {{sales: "shops/{{key}}"}}
    run: {{dir: trainer, command: ['{sys.executable}', train.py]}}
    makes: {{model: "mean/{{key}}"}}
    gate: [metrics.accuracy >= 0.5]
streams:
  numbers: {{types: [number], partitions: 3}}
"""

TRAINER = f"""
import sys
from tidemill import run

rows = run.inputs.rows("sales")
for step in range(3):
    run.log(step + 1, total=3, loss=1 / (step + 1))
truth = [r["label"] for r in rows]
run.predictions(truth, ["yes"] * len(rows), champion=["no"] * len(rows) if run.champion else None)
run.metrics(rows=len(rows), caused=len(run.events), attempt=run.attempt)
run.checkpoint.save("state.json", {{"rows": len(rows)}})
(run.out / "model.onnx").write_bytes(bytes.fromhex('{IDENTITY}'))
print("trained", run.recipe, run.key, run.id, flush=True)
sys.exit(len(rows) == 0)
"""


class Cutter:
    """A proxy in front of a gateway that closes each connection after some bytes of the answer."""

    def __init__(self, url: str, most: int) -> None:
        self.to = int(url.rpartition(":")[2])
        self.most = most
        self.cuts = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self.serve, args=(client, server), daemon=True).start()

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            up = threading.Thread(target=self.copy, args=(client, server, None), daemon=True)
            up.start()
            self.copy(server, client, self.most)
            up.join()

    def copy(self, source: socket.socket, to: socket.socket, most: "int | None") -> None:
        try:
            while most is None or most > 0:
                data = source.recv(1 << 16 if most is None else min(most, 1 << 16))
                if not data:
                    break
                to.sendall(data)
                most = None if most is None else most - len(data)
        except OSError:
            pass
        self.cuts += most == 0
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class WithUp(unittest.TestCase):
    """One tidemill up for all tests."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.up = Up({"tidemill.yaml": CONFIG, "trainer/train.py": TRAINER})
        cls.addClassCleanup(cls.up.stop)
        cls.client = cls.up.start()

    def folder(self) -> pathlib.Path:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        return pathlib.Path(temporary.name)

    def test_events_go_out_and_come_back_once(self) -> None:
        sent = [event("number", {"n": n}, subject=f"k{n % 7}") for n in range(2500)]
        stored = self.client.publish(sent)
        self.assertEqual({s.stream for s in stored}, {"numbers"})
        again = self.client.publish(sent[0])
        self.assertTrue(again[0].repeated)
        cutter = Cutter(self.client.url, 40_000)
        self.addCleanup(cutter.listener.close)
        tailed = list(Client(cutter.url).tail("numbers", "beginning", follow=False))
        self.assertGreater(cutter.cuts, 5)
        self.assertEqual(sorted(t.event["data"]["n"] for t in tailed), list(range(2500)))
        for partition in range(3):
            offsets = [t.offset for t in tailed if t.partition == partition]
            self.assertEqual(offsets, sorted(offsets))
        rest = list(self.client.tail("numbers", follow=False, after=tailed[2000].id))
        for partition in range(3):  # partitions come in any order
            left = [t.event["id"] for t in tailed[2001:] if t.partition == partition]
            self.assertEqual([t.event["id"] for t in rest if t.partition == partition], left)
        self.assertEqual(len(rest), len(tailed) - 2001)
        some = list(self.client.tail("numbers", "beginning", where="subject = 'k3'", limit=5))
        self.assertEqual([t.event["subject"] for t in some], ["k3"] * 5)

    def test_a_missing_number_is_null(self) -> None:
        row = {"n": float("nan"), "more": [1.5, {"n": float("nan")}]}
        self.client.publish([event("gaps", row), {"type": "gaps", "data": row}])
        tailed = self.client.tail("events", "beginning", where="type = 'gaps'", follow=False)
        self.assertEqual([t.event["data"] for t in tailed], [{"n": None, "more": [1.5, {"n": None}]}] * 2)

    def test_more_than_one_request_may_have(self) -> None:
        sent = [event("large", "x" * 900_000) for _ in range(20)]
        self.assertEqual([s.id for s in self.client.publish(sent)], [e["id"] for e in sent])

    def test_a_date_is_text(self) -> None:
        day = datetime.date(2026, 11, 1)
        self.assertEqual(event("number", {"day": day, "at": [datetime.datetime(2026, 11, 1, 12)]})["data"],
                         {"day": "2026-11-01", "at": ["2026-11-01T12:00:00"]})

    def test_a_refused_event_says_why(self) -> None:
        with self.assertRaises(TidemillError) as caught:
            self.client.publish([event("fine"), event("tidemill.mine")])
        self.assertEqual(caught.exception.status, 400)
        self.assertIn("reserved", str(caught.exception))
        self.assertEqual([a["status"] for a in caught.exception.problem["events"]], [202, 403])

    def test_data_goes_out_and_comes_back(self) -> None:
        source, to = self.folder(), self.folder()
        (source / "deep").mkdir()
        (source / "deep" / "ü.txt").write_text("small")
        (source / "empty").write_bytes(b"")
        (source / "run.sh").write_text("#!/bin/sh\n")
        (source / "run.sh").chmod(0o755)
        with open(source / "large", "wb") as f:
            f.truncate((64 << 20) + 3)  # two parts
            f.write(b"begin")
        commit = self.client.data.put("files/one", source, message="m")
        self.assertEqual((commit["files"], commit["unchanged"]), (4, False))
        self.assertTrue(self.client.data.put("files/one", source)["unchanged"])
        self.client.data.get("files/one", to)
        self.assertEqual(self.content(to), self.content(source))
        (source / "empty").unlink()
        self.client.data.put("files/one", source, replace=True)
        self.assertNotIn("empty", [f["path"] for f in self.client.data.files("files/one")])
        self.assertIn("empty", [f["path"] for f in self.client.data.files("files/one", commit["id"])])
        self.client.data.put("files/two", source / "run.sh", branch="other")
        self.assertIn({"name": "files/two", "branches": ["other"]}, self.client.data.list("files/"))

    @staticmethod
    def content(root: pathlib.Path) -> dict:
        return {p.relative_to(root).as_posix(): (p.read_bytes(), os.access(p, os.X_OK)) for p in root.rglob("*") if p.is_file()}

    def test_the_loop(self) -> None:
        c, folder = self.client, self.folder()
        (folder / "sales.csv").write_text("label\nyes\nyes\nyes\nno\n")
        c.data.put("shops/berlin", folder)
        first = eventually("the run of the commit", lambda: c.runs.list(recipe="mean", key="berlin"))[0]["id"]  # type: ignore[index]
        self.assertEqual(c.runs.wait(first, 60)["state"], "succeeded", "\n".join(c.runs.log(first)))
        model = "mean/berlin"
        eventually("the first champion", lambda: [m for m in c.models.list("mean/") if m["champion"] == 1])
        second = c.runs.start("mean", "berlin", event("hand-made", subject="berlin"))
        self.assertEqual(list(c.runs.follow(second)), [f"trained mean berlin {second}"])
        shown = c.runs.wait(second, 60)
        self.assertEqual([e["type"] for e in shown["events"]], ["hand-made"])
        eventually("the curve", lambda: c.runs.curve(second)[-1:] == [{"step": 3, "loss": 1 / 3}])
        eventually("the second champion", lambda: c.models.show(model)["champion"] == 2)
        version = c.models.version(model)
        self.assertEqual(version["measured"]["metrics"]["accuracy"], 0.75)
        self.assertEqual(version["measured"]["champion"]["metrics"]["accuracy"], 0.25)
        self.assertEqual(c.models.confusion(model), {"no": {"no": 0, "yes": 1}, "yes": {"no": 0, "yes": 3}})
        rows = {r["name"]: r for r in c.models.compare(model, "previous", "champion")}
        self.assertEqual(rows["accuracy"], {"name": "accuracy", "a": 0.25, "b": 0.75, "difference": 0.5, "same": True})
        self.assertEqual((rows["caused"]["same"], rows["caused"]["a"]), (False, 1))
        self.assertEqual(c.models.rollback(model, reason="a test")["champion"], 1)
        self.assertEqual(c.models.promote(model, "newest", reason="a test")["champion"], 2)
        kinds = {n["kind"] for n in c.why(f"model/{model}@1")["nodes"]}
        self.assertLessEqual({"model", "run", "commit", "event"}, kinds)

    def test_a_run_can_be_cancelled(self) -> None:
        with self.assertRaises(TidemillError) as caught:
            self.client.runs.start("no-such", "k")
        self.assertEqual(caught.exception.status, 404)
        with self.assertRaises(TidemillError):
            self.client.runs.show("abcdefgh")

    def test_a_scorer_that_is_not_there(self) -> None:
        self.assertEqual(self.client.scorers(), [])
        with self.assertRaises(TidemillError) as caught:
            self.client.score("no-such", {"n": 1}, "k")
        self.assertEqual(caught.exception.status, 404)


if __name__ == "__main__":
    unittest.main()
