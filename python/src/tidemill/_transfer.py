"""Files between folders and a gateway. Only objects that the store lacks are uploaded."""

from __future__ import annotations

import hashlib
import os
import pathlib
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Tuple

from ._http import Broken, Gateway, TidemillError, read_some
from ._values import replacing

PART = 64 << 20  # size of the parts of a large file
SMALL = 1 << 20  # size up to which objects are uploaded together
BATCH = 8 << 20
PAGE = 4000  # objects in one question
PAGE_BYTES = 2 << 30  # bytes of these objects: a bucket writes old ones again before the gateway answers
WAYS = 4  # requests at the same time
OBJECTS = "application/vnd.tidemill.objects"

Open = Callable[[], BinaryIO]


class Upload:
    """A file to be uploaded: its path in the dataset, and how to open it."""

    def __init__(self, path: str, opened: Open, executable: bool = False) -> None:
        self.path = path
        self.opened = opened
        self.executable = executable
        self.parts: List[Dict[str, Any]] = []

    def scan(self) -> Dict[str, Any]:
        """Read the file, and describe it as the gateway wants it."""
        whole, size = hashlib.sha256(), 0
        with self.opened() as f:
            for data in iter(lambda: f.read(PART), b""):
                self.parts.append({"digest": hashlib.sha256(data).hexdigest(), "size": len(data)})
                whole.update(data)
                size += len(data)
        self.parts = self.parts or [{"digest": whole.hexdigest(), "size": 0}]
        out: Dict[str, Any] = {"path": self.path, "digest": whole.hexdigest(), "size": size}
        if self.executable:
            out["executable"] = True
        if len(self.parts) > 1:
            out["parts"] = self.parts
        return out

    def read(self, index: int) -> bytes:
        """Read one part."""
        with self.opened() as f:
            f.seek(index * PART)
            data = f.read(self.parts[index]["size"])
        if hashlib.sha256(data).hexdigest() != self.parts[index]["digest"]:
            raise ValueError(f"{self.path} has changed since it was read: try again when nothing writes to it")
        return data


def folder(source: pathlib.Path) -> List[Upload]:
    """Return the files of a folder, or one file."""
    if source.is_file():
        return [_file(source, source.name)]
    files = []
    for p in sorted(source.rglob("*")):
        if p.is_file():
            files.append(p)
        elif p.is_symlink() or not p.is_dir():
            raise ValueError(f"{p} is a link to a folder or to nothing, or no file, and would be left out: replace it by its target, or remove it")
    if not files:
        raise FileNotFoundError(f"{source} is neither a file nor a folder with files")
    return [_file(p, p.relative_to(source).as_posix()) for p in files]


def _file(path: pathlib.Path, name: str) -> Upload:
    return Upload(name, lambda: open(path, "rb"), bool(path.stat().st_mode & 0o111) and os.name != "nt")


def put(gateway: Gateway, files: List[Upload]) -> List[Dict[str, Any]]:
    """Upload the objects that the store lacks, and return the descriptions of the files."""
    described = [f.scan() for f in files]
    where = {part["digest"]: (f, i, part) for f in files for i, part in enumerate(f.parts)}
    asked = [part for _, _, part in where.values()]
    with ThreadPoolExecutor(WAYS) as pool:
        for some in _questions(asked):
            lack = gateway.ask("POST", "/api/v1/data/objects/missing", body={"objects": some})["objects"]
            list(pool.map(lambda batch: _put(gateway, batch), _batches(where[o["digest"]] for o in lack)))
    return described


def _questions(objects: List[Dict[str, Any]]) -> Iterator[List[Dict[str, Any]]]:
    """Put objects together that one question may ask for."""
    some: List[Dict[str, Any]] = []
    size = 0
    for o in objects:
        if some and (len(some) == PAGE or size + o["size"] > PAGE_BYTES):
            yield some
            some, size = [], 0
        some.append(o)
        size += o["size"]
    if some:
        yield some


Object = Tuple[Upload, int, Dict[str, Any]]


def _batches(objects: Iterable[Object]) -> Iterator[List[Object]]:
    """Put small objects together, and large ones alone."""
    batch: List[Object] = []
    size = 0
    for o in objects:
        if o[2]["size"] > SMALL:
            yield [o]
            continue
        if batch and size + o[2]["size"] > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(o)
        size += o[2]["size"]
    if batch:
        yield batch


def _put(gateway: Gateway, batch: List[Object]) -> None:
    if len(batch) == 1 and batch[0][2]["size"] > SMALL:
        file, index, part = batch[0]
        gateway.send("POST", "/api/v1/data/object", part, file.read(index), {"Content-Type": "application/octet-stream"})
        return
    body = b"".join(bytes.fromhex(part["digest"]) + struct.pack(">Q", part["size"]) + file.read(i) for file, i, part in batch)
    gateway.send("POST", "/api/v1/data/objects", None, body, {"Content-Type": OBJECTS})


def place(root: pathlib.Path, path: str) -> pathlib.Path:
    """Return where a file belongs below a folder. A path that leads out of it is refused."""
    to = root / path
    if not path or pathlib.PurePosixPath(path).is_absolute() or ".." in to.parts or root.resolve() not in to.resolve().parents:
        raise ValueError(f"the file {path!r} would be written outside {root}")
    return to


def get(gateway: Gateway, files: List[Dict[str, Any]], root: pathlib.Path) -> List[pathlib.Path]:
    """Download files by their digests. A file that is there already is not fetched again."""
    def one(file: Dict[str, Any]) -> pathlib.Path:
        to = place(root, file["path"])
        if not _is_same(to, file):
            fetch(gateway, file, to, [("/api/v1/data/object", {"digest": p["digest"]}) for p in file.get("parts") or [file]])
        return to

    with ThreadPoolExecutor(WAYS) as pool:
        return list(pool.map(one, files))


def _is_same(to: pathlib.Path, file: Dict[str, Any]) -> bool:
    if not to.is_file() or to.stat().st_size != file["size"]:
        return False
    return bool(Upload("", lambda: open(to, "rb")).scan()["digest"] == file["digest"])


def fetch(gateway: Gateway, file: Dict[str, Any], to: pathlib.Path, requests: List[Tuple[str, Dict[str, Any]]]) -> None:
    """Download one file, as the bytes of some answers. It gets its name only if its digest is right.

    The patience begins again whenever a try comes further than all before it.
    """
    most, retrier = 0, gateway.retrier()
    while True:
        digest, got = hashlib.sha256(), 0
        try:
            with replacing(to) as part, open(part, "wb") as f:
                for path, query in requests:
                    with gateway.open("GET", path, query) as answer:
                        for some in read_some(answer):
                            digest.update(some)
                            f.write(some)
                            got += len(some)
                            if got > most:
                                most, retrier = got, gateway.retrier()
                if digest.hexdigest() != file["digest"]:
                    raise Broken(f"{file['path']} came with other bytes than its digest names")
            break
        except (Broken, TidemillError) as e:
            gateway.fail(retrier, e)
    if file.get("executable"):
        to.chmod(to.stat().st_mode | 0o111)
