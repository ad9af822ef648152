"""model.yaml, the description of a model. Each of its lines is a key and its value as JSON, which is YAML, too."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any, Dict


def write(card: Dict[str, Any]) -> str:
    """Return the text of a card."""
    return "".join(f"{key}: {_flow(value)}\n" for key, value in card.items())


def _flow(value: Any) -> str:
    """Return a value in JSON, but NaN and infinity as YAML has them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value, ensure_ascii=False)


def read(file: pathlib.Path) -> Dict[str, Any]:
    """Read a card of this package without any library, and others by PyYAML. A missing file is an empty card."""
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    try:
        lines = (line.partition(": ") for line in text.splitlines() if line.strip())
        return {key: None if key == "golden" else json.loads(value) for key, _, value in lines}
    except ValueError:
        pass
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as e:
        raise ImportError(f"{file} was not written by this package, and reading it needs PyYAML: pip install pyyaml") from e
    return dict(yaml.safe_load(text) or {})
