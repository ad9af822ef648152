"""Values of other libraries as plain Python, and files that are written atomically."""

from __future__ import annotations

import datetime
import importlib
import math
import os
import pathlib
import secrets
from contextlib import contextmanager
from typing import Any, Iterator, List, Union

PathLike = Union[str, "os.PathLike[str]"]


def need(module: str, package: str, why: str) -> Any:
    """Import a module that is not part of Python, or say which package has it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ImportError(f"{why} needs the package {package}: pip install {package} ({e})") from e


def plain(value: Any) -> Any:
    """Turn values of numpy, pandas and torch into those of Python."""
    if isinstance(value, (str, bytes, bool, int, float)) or value is None:
        return value
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas.NA and pandas.NaT: a missing value
        return None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu()
    if hasattr(value, "tolist"):  # an array, a series, a tensor, or one number of them
        value = value.tolist()
        return plain(value) if isinstance(value, (list, dict)) else value
    if isinstance(value, (list, tuple)) or hasattr(value, "__iter__"):
        return [plain(v) for v in value]
    return value


def as_json(value: Any) -> Any:
    """Turn values into those of JSON. It has no NaN, so a missing number is null. A date or a time becomes text."""
    value = plain(value)
    if isinstance(value, dict):
        return {k: as_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_json(v) for v in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return None if isinstance(value, float) and math.isnan(value) else value


def column(values: Any) -> List[Any]:
    """Turn labels or predictions into a flat list. A table of one column counts as that column."""
    out = []
    for v in plain(values):
        if isinstance(v, list):
            if len(v) != 1:
                raise ValueError(f"a row has {len(v)} values, and one is wanted: give labels or numbers, not a table")
            v = v[0]
        out.append(v)
    return out


def label(value: Any) -> str:
    """Return the text of a class: true and false for booleans, 1 for 1.0."""
    value = plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_missing(value: Any) -> bool:
    """Report whether a value means "no answer"."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value)) or value != value


@contextmanager
def replacing(file: PathLike) -> Iterator[pathlib.Path]:
    """Give a temporary path with the same ending. At the end the file there gets its real name, if nothing failed."""
    to = pathlib.Path(file)
    to.parent.mkdir(parents=True, exist_ok=True)
    # The agent leaves files with such a name out of the next attempt's checkpoint: internal/runs/agent/fetch.go.
    part = to.parent / f".{secrets.token_hex(8)}.part{to.suffix}"
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # not by tempfile, whose files only their owner may read
    try:
        yield part
        os.replace(part, to)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(file: PathLike, text: str) -> None:
    """Write a file atomically."""
    with replacing(file) as part:
        part.write_text(text, encoding="utf-8")
