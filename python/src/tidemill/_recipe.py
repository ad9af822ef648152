"""Recipes as Python functions: the decorator writes what tidemill.yaml needs."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from ._values import PathLike, write_text

MARK = "# Written by python -m tidemill init. Change the script instead, and write it again.\n"
FILE = "tidemill.yaml"

_known: Dict[str, "Recipe"] = {}


class Recipe:
    """A recipe whose run is a function of a script. Calling it calls the function."""

    def __init__(self, name: str, body: Dict[str, Any], function: Callable[[], Any]) -> None:
        self.name = name
        self.body = body
        self.function = function
        self.script = pathlib.Path(function.__code__.co_filename).absolute()
        functools.update_wrapper(self, function)

    def __call__(self) -> Any:
        """Call the function: in a run, or with the folders in/ and out/ of the current folder."""
        return self.function()

    def config(self, folder: Optional[PathLike] = None) -> Dict[str, Any]:
        """Return the recipe as tidemill.yaml has it, for a file in a folder; that of the script by default."""
        root = pathlib.Path(folder) if folder is not None else self.script.parent
        command = [_python(self.script.parent), "-m", "tidemill", "run", self.script.name]
        body = dict(self.body)
        body["run"] = {"dir": os.path.relpath(self.script.parent, root.absolute()), "command": command, **body.get("run", {})}
        return body

    def yaml(self) -> str:
        """Return a whole tidemill.yaml with this recipe."""
        return text([self])

    def try_(self, key: str, data: Union[PathLike, Mapping[str, PathLike]], out: Optional[PathLike] = None) -> None:
        """Do one run of the recipe by the command tidemill try, which publishes nothing.

        data is the folder of a single input, or a folder for each input by name. The output goes to
        the folder out. A failed run raises subprocess.CalledProcessError; its log has the reason.
        """
        binary = shutil.which("tidemill")
        if binary is None:
            raise FileNotFoundError("the program tidemill is not in PATH: build it by make build, and add its folder to PATH")
        folders = [f"{name}={folder}" for name, folder in data.items()] if isinstance(data, Mapping) else [os.fspath(data)]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / FILE
            write_text(file, text([self], folder))
            command = [binary, "try", self.name, "-f", str(file), "--key", key]
            for each in folders:
                command += ["--data", each]
            subprocess.run(command + (["--out", os.fspath(out)] if out is not None else []), check=True)


def recipe(name: str, when: Any, makes: Union[str, Mapping[str, str]], inputs: Optional[Mapping[str, Any]] = None,
           gate: Sequence[str] = (), run: Optional[Mapping[str, Any]] = None, **more: Any) -> Callable[[Callable[[], Any]], Recipe]:
    """Make a recipe of a function without arguments, which trains with tidemill.run.

    makes is a model such as "fraud/{key}", or {"dataset": …}. run has keys such as deadline, attempts
    and env. All other keys of a recipe can be given, too, and values are written as they are.
    """
    body: Dict[str, Any] = {"when": when}
    if inputs:
        body["inputs"] = dict(inputs)
    body["run"] = dict(run or {})
    body["makes"] = {"model": makes} if isinstance(makes, str) else dict(makes)
    if gate:
        body["gate"] = list(gate)
    body.update(more)

    def decorate(function: Callable[[], Any]) -> Recipe:
        made = Recipe(name, body, function)
        _known[name] = made
        return made

    return decorate


def text(recipes: Sequence[Recipe], folder: Optional[PathLike] = None) -> str:
    """Return a whole tidemill.yaml with some recipes. Values are JSON, which is YAML, too."""
    lines = [MARK + "version: 1", "recipes:"]
    for r in recipes:
        lines.append(f"  {json.dumps(r.name)}:")
        for key, value in r.config(folder).items():
            if isinstance(value, list):
                lines.append(f"    {key}:")
                lines.extend(f"      - {json.dumps(item, ensure_ascii=False)}" for item in value)
            else:
                lines.append(f"    {key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def load(script: PathLike) -> List[Recipe]:
    """Import a script, and return the recipes that it declares."""
    file = pathlib.Path(script).absolute()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.exists():
        raise FileNotFoundError(f"{script} is not a Python script")
    _known.clear()
    sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return list(_known.values())


def init(script: PathLike, to: Optional[PathLike] = None) -> pathlib.Path:
    """Write the tidemill.yaml of a script. A file that was written by hand stays as it is."""
    file = pathlib.Path(to) if to is not None else pathlib.Path(script).absolute().parent / FILE
    found = load(script)
    if not found:
        raise LookupError(f"{script} declares no recipe: decorate a function by tidemill.recipe")
    if file.exists() and not file.read_text(encoding="utf-8").startswith(MARK):
        raise FileExistsError(f"{file} was written by hand: write to another file by --to, or remove it")
    write_text(file, text(found, file.absolute().parent))
    return file


def call(script: PathLike, name: str) -> None:
    """Call the function of a recipe."""
    recipes = {r.name: r for r in load(script)}
    if name not in recipes:
        raise LookupError(f"{script} declares no recipe {name!r}; it has {', '.join(recipes) or 'none'}")
    recipes[name]()


def _python(folder: pathlib.Path) -> str:
    """Return this Python, relative to a folder if it is below it."""
    python = pathlib.Path(sys.executable)
    return "./" + python.relative_to(folder).as_posix() if folder in python.parents else str(python)
