"""Rows for a model, in any of the forms that Python programs have."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ._values import need

MOST_INPUTS = 256  # most inputs that a scorer reads from an event


class Sample:
    """Rows of data: columns with names, or one nameless table, or texts."""

    def __init__(self, data: Any, name: str = "") -> None:
        self.data = data
        self.name = name
        np = need("numpy", "numpy", "a sample of rows")
        self.by_column = isinstance(data, dict) or (hasattr(data, "columns") and hasattr(data, "dtypes"))
        if self.by_column:
            self._columns = {str(c): _array(data[c]) for c in (data if isinstance(data, dict) else data.columns)}
        else:
            self._array = _array(data if hasattr(data, "dtype") else list(data))
            self.name = name or ("text" if self._array.ndim == 1 and is_text(self._array) else "features")
        first = next(iter(self.arrays().values()), np.empty(0))
        self.rows = len(first) if first.ndim else 0
        if self.rows == 0:
            raise ValueError("the sample has no rows: give some rows of the test data")

    def arrays(self) -> Dict[str, Any]:
        """Return an array for each input, by name."""
        return dict(self._columns) if self.by_column else {self.name: self._array}

    def frame(self) -> Any:
        """Return what a model of scikit-learn takes: a DataFrame for named columns, else the data itself."""
        if isinstance(self.data, dict):
            return need("pandas", "pandas", "a sample of named columns").DataFrame(self.data)
        if hasattr(self.data, "dtype") or self.by_column:
            return self.data
        return list(self.data) if self._array.ndim == 1 and is_text(self._array) else self._array

    def feeds(self, inputs: Sequence[Tuple[str, str, Sequence[Any]]]) -> Dict[str, Any]:
        """Return the tensors for a model's inputs, each given by its name, type and shape."""
        have = self.arrays()
        if len(inputs) == 1 and not self.by_column:
            have = {inputs[0][0]: self._array}
        missing = [name for name, _, _ in inputs if name not in have]
        if missing:
            raise ValueError(f"the rows lack the model's inputs {', '.join(missing)}; they have {', '.join(have)}")
        return {name: self._tensor(have[name], kind, shape) for name, kind, shape in inputs}

    def _tensor(self, array: Any, kind: str, shape: Sequence[Any]) -> Any:
        np = need("numpy", "numpy", "a sample of rows")
        kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64,
                 "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(string)": object}
        if kind == "tensor(string)":
            texts = [str(v) for v in array.reshape(-1)]
            array = np.array(texts, dtype=object).reshape(array.shape)
        sizes = [self.rows] + [n if isinstance(n, int) and n > 0 else -1 for n in list(shape)[1:]]
        if sizes.count(-1) > 1:
            sizes = list(array.shape)
        return array.astype(kinds[kind]).reshape(sizes)


def _array(values: Any) -> Any:
    """Return an array of numpy; columns of categories and of texts become arrays of objects."""
    np = need("numpy", "numpy", "a sample of rows")
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind in "USOT" else array


def is_text(array: Any) -> bool:
    """Report whether an array has texts."""
    return array.dtype.kind == "O" and any(isinstance(v, str) for v in array.reshape(-1)[:1000])


def golden_rows(feeds: Dict[str, Any], row: int) -> Dict[str, List[Any]]:
    """Return one row of tensors as the inputs of a golden request."""
    out: Dict[str, List[Any]] = {}
    for name, array in feeds.items():
        values = array[row].tolist()
        out[name] = [values if isinstance(values, list) else [values]]
    return out
