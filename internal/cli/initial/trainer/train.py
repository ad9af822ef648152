"""Learns to predict a class: softmax regression, with Python's standard library alone.

Replace it by your own trainer. It shows the whole contract of a run:
  TIDEMILL_IN/<input>/     the data, read-only: *.csv with a header, *.jsonl with an object a line.
                           It learns to predict the column `label` from all columns of numbers.
  TIDEMILL_OUT/            model.onnx, metrics.json, metrics.jsonl (a line a step) and predictions.csv;
                           weights.json is for the next run, which reads it from
  TIDEMILL_CHAMPION/       the promoted version, to be measured on the same data
  TIDEMILL_CHECKPOINT/     its state, to continue after a crash
  SIGTERM                  save a checkpoint, and exit
"""
import csv, json, math, os, pathlib, signal, struct, sys

STEPS = int(os.environ.get("STEPS", "300"))
RATE, DECAY = 0.5, 1e-4
leaving = []  # the received signals


def load(folder):
    """All rows below a folder, as dictionaries."""
    rows = []
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix == ".csv":
            with open(path, newline="", encoding="utf-8") as f:
                rows += csv.DictReader(f)
        elif path.suffix == ".jsonl":
            with open(path, encoding="utf-8") as f:
                rows += [json.loads(line) for line in f if line.strip()]
    return [row for row in rows if row.get("label") not in (None, "")]


def number(value):
    try:
        x = float(value)
    except (TypeError, ValueError):
        return None
    return x if math.isfinite(x) else None


def table(rows):
    """The names of columns and classes, and the rows as numbers."""
    names = [n for n in rows[0] if n != "label" and all(number(r.get(n)) is not None for r in rows)]
    labels = sorted({str(r["label"]) for r in rows})
    if not names or len(labels) < 2:
        sys.exit(f"there is too little to learn from: {len(names)} columns of numbers, {len(labels)} labels")
    return names, labels, [[number(r[n]) for n in names] for r in rows], [labels.index(str(r["label"])) for r in rows]


def scale(xs):
    """Mean and spread of each column, so that steps have the same size in all columns."""
    means = [sum(c) / len(xs) for c in zip(*xs)]
    spreads = [math.sqrt(sum((v - m) ** 2 for v in c) / len(xs)) or 1.0 for c, m in zip(zip(*xs), means)]
    return means, spreads


def softmax(weights, bias, x):
    scores = [b + sum(w * v for w, v in zip(row, x)) for row, b in zip(weights, bias)]
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [p / sum(powers) for p in powers]


def step(weights, bias, xs, ys):
    """One step down the gradient; returns the loss before it."""
    gw, gb, loss = [[0.0] * len(xs[0]) for _ in weights], [0.0] * len(bias), 0.0
    for x, y in zip(xs, ys):
        p = softmax(weights, bias, x)
        loss -= math.log(max(p[y], 1e-12))
        for k in range(len(bias)):
            error = p[k] - (k == y)
            gb[k] += error
            for j, v in enumerate(x):
                gw[k][j] += error * v
    for k in range(len(bias)):
        bias[k] -= RATE * gb[k] / len(xs)
        for j in range(len(xs[0])):
            weights[k][j] -= RATE * (gw[k][j] / len(xs) + DECAY * weights[k][j])
    return loss / len(xs)


def save(path, text):
    """Writes a file completely or not at all, even if the process is killed."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def resume(path, shape):
    """The state of an interrupted attempt, if it had the same columns and classes."""
    if path.exists():
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["shape"] == shape:
            print(f"resumes from step {saved['step']}", flush=True)
            return saved["step"], saved["weights"], saved["bias"]
    names, labels = shape
    return 0, [[0.0] * len(names) for _ in labels], [0.0] * len(labels)


def best(weights, bias, labels, x):
    """The most likely label of an original row."""
    scores = [b + sum(w * v for w, v in zip(row, x)) for row, b in zip(weights, bias)]
    return labels[scores.index(max(scores))]


def champion(names, rows):
    """The predictions of the promoted version, or None if there is none for these columns."""
    path = pathlib.Path(os.environ.get("TIDEMILL_CHAMPION") or "none") / "weights.json"
    if not path.exists():
        return None
    saved = json.loads(path.read_text(encoding="utf-8"))
    if not set(saved["columns"]) <= set(names):
        print(f"the champion is not measured: it asks for the columns {saved['columns']}", flush=True)
        return None
    at = [names.index(c) for c in saved["columns"]]
    return [best(saved["weights"], saved["bias"], saved["labels"], [row[j] for j in at]) for row in rows]


def leave(out, weights, bias, names, labels, truths, rows):
    """Writes a model whose input is the original columns, and the predictions of it and of the champion
    for rows that neither was trained on. Returns the accuracy."""
    (out / "model.onnx").write_bytes(onnx(weights, bias, names, labels))
    save(out / "weights.json", json.dumps({"columns": names, "labels": labels, "weights": weights, "bias": bias}))
    told = {"truth": truths, "predicted": [best(weights, bias, labels, row) for row in rows], "champion": champion(names, rows)}
    told = {name: column for name, column in told.items() if column}
    with open(out / "predictions.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([told, *zip(*told.values())])
    return sum(a == b for a, b in zip(told["truth"], told["predicted"])) / len(truths)


# An ONNX file is a protocol buffer: a list of fields, each with a number and a kind.
def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def integer(field, n):
    return varint(field << 3) + varint(n)


def message(field, *parts):
    body = b"".join(p.encode() if isinstance(p, str) else p for p in parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def tensor(name, dims, values):
    return message(5, *[integer(1, d) for d in dims], integer(2, 1), message(8, name), message(9, struct.pack(f"<{len(values)}f", *values)))


def port(field, name, width):
    """An input or output: a table of floats with any number of rows."""
    shape = message(2, message(1, message(2, "rows")), message(1, integer(1, width)))
    return message(field, message(1, name), message(2, message(1, integer(1, 1), shape)))


def onnx(weights, bias, names, labels):
    """probabilities = Softmax(Gemm(x, weights, bias)), with the names among the metadata."""
    columns = [weights[k][j] for j in range(len(names)) for k in range(len(labels))]
    graph = [message(1, message(1, "x"), message(1, "weights"), message(1, "bias"), message(2, "scores"), message(3, "linear"), message(4, "Gemm")),
             message(1, message(1, "scores"), message(2, "probabilities"), message(3, "softmax"), message(4, "Softmax")),
             message(2, "classifier"), tensor("weights", [len(names), len(labels)], columns), tensor("bias", [len(labels)], bias),
             port(11, "x", len(names)), port(12, "probabilities", len(labels))]
    told = [message(14, message(1, key), message(2, json.dumps(value))) for key, value in (("labels", labels), ("columns", names))]
    return integer(1, 7) + message(2, "train.py") + message(7, *graph) + message(8, message(1, ""), integer(2, 13)) + b"".join(told)


def main():
    signal.signal(signal.SIGTERM, lambda number, frame: leaving.append(number))
    out, checkpoint = pathlib.Path(os.environ["TIDEMILL_OUT"]), pathlib.Path(os.environ["TIDEMILL_CHECKPOINT"]) / "state.json"
    rows = load(os.environ["TIDEMILL_IN"])
    if len(rows) < 10:
        sys.exit(f"{len(rows)} rows with a label are too few: 10 at least")
    names, labels, given, ys = table(rows)
    means, spreads = scale(given)
    xs = [[(v - m) / s for v, m, s in zip(x, means, spreads)] for x in given]
    learn = [i for i in range(len(xs)) if i % 5]  # every fifth row is kept for measuring
    judge = [i for i in range(len(xs)) if not i % 5]
    print(f"{len(learn)} rows to learn from, {len(judge)} to judge by: {len(names)} columns, labels {', '.join(labels)}", flush=True)

    begin, weights, bias = resume(checkpoint, [names, labels])
    with open(out / "metrics.jsonl", "a", encoding="utf-8") as curve:
        for n in range(begin, STEPS):
            loss = step(weights, bias, [xs[i] for i in learn], [ys[i] for i in learn])
            done = n + 1
            if done % 10 == 0 or done == STEPS:
                print(json.dumps({"step": done, "total": STEPS, "loss": round(loss, 6)}), file=curve, flush=True)
            if done % 50 == 0 or leaving:
                save(checkpoint, json.dumps({"step": done, "shape": [names, labels], "weights": weights, "bias": bias}))
            if leaving:
                sys.exit(f"asked to leave at step {done}; the checkpoint has it")

    loss = -sum(math.log(max(softmax(weights, bias, xs[i])[ys[i]], 1e-12)) for i in judge) / len(judge)
    # The model's input is the original columns, so its weights include the scale.
    plain = [[w / s for w, s in zip(row, spreads)] for row in weights]
    shifted = [b - sum(w * m for w, m in zip(row, means)) for b, row in zip(bias, plain)]
    accuracy = leave(out, plain, shifted, names, labels, [labels[ys[i]] for i in judge], [given[i] for i in judge])
    save(out / "metrics.json", json.dumps({"accuracy": accuracy, "loss": loss, "rows": len(rows)}))
    print(f"accuracy {accuracy:.3f} on {len(judge)} rows", flush=True)


if __name__ == "__main__":
    main()
