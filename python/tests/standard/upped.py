"""A tidemill up for tests, with its own folder and free ports."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from typing import Dict, Optional

from tidemill import Client, TidemillError

# A model that answers y = x, as the bytes of its ONNX file. The library onnx is not there.
IDENTITY = ("080812003a410a100a017812017922084964656e7469747912016d5a140a0178120f0a0d080112090a0312016e0a02080162140a0179120f0a0d08"
            "0112090a0312016e0a02080142040a001011")


class Up:
    """A tidemill up in a temporary folder, which has the given files."""

    def __init__(self, files: Dict[str, str]) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tidemill-python-"))
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self.process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> Client:
        """Start it, wait until it is ready, and return a client that found it by its folder."""
        binary = os.environ["TIDEMILL_BINARY"]
        with open(self.folder / "up.log", "ab") as log:
            self.process = subprocess.Popen(
                [binary, "up", "--kafka-port", "0", "--redis-port", "0", "--listen", "127.0.0.1:0"],
                cwd=self.folder, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while True:
            try:
                client = Client(folder=self.folder / ".tidemill")
                urllib.request.urlopen(client.url + "/readyz", timeout=5).close()
                return client
            except (TidemillError, OSError):
                if self.process.poll() is not None or time.monotonic() > until:
                    raise AssertionError("tidemill up did not start: " + self.log()) from None
                time.sleep(0.05)

    def use_this_python(self, test: unittest.TestCase) -> pathlib.Path:
        """Let python3 be the Python of the tests until a test ends. Return the first folder of PATH."""
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (programs / "python3").chmod(0o755)
        path = os.environ["PATH"]
        os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
        test.addCleanup(os.environ.__setitem__, "PATH", path)
        return programs

    def log(self) -> str:
        """Return its log."""
        return (self.folder / "up.log").read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


def eventually(what: str, check: object, within: float = 30.0) -> object:
    """Wait until a function returns something true, and return that."""
    until = time.monotonic() + within
    while True:
        found = check()  # type: ignore[operator]
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {within:g} s")
        time.sleep(0.05)
