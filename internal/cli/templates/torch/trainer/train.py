"""Learns a class from columns of numbers with PyTorch.

It saves a checkpoint every few epochs, and when it gets SIGTERM. The next attempt of the run
continues from there, and makes the same model as without the break.
"""
import os
import signal
import sys
import zlib

import torch
from torch import nn

from tidemill import run

LABEL = "label"  # the column to predict
IGNORE = []  # columns that the model must not read, such as ids
EPOCHS = int(os.environ.get("EPOCHS", "120"))
EVERY = 10  # epochs between points of the curve, and between checkpoints

leaving = []  # the received signals
signal.signal(signal.SIGTERM, lambda number, frame: leaving.append(number))
torch.manual_seed(1)


class Classifier(nn.Module):
    """Scales each column, and has one hidden layer. Each column is an input of the model."""

    def __init__(self, x, labels):
        super().__init__()
        self.register_buffer("mean", x.mean(dim=0))
        self.register_buffer("spread", x.std(dim=0) + 1e-6)
        self.layers = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, labels))

    def scores(self, *columns):
        return self.layers((torch.cat(columns, dim=1) - self.mean) / self.spread)

    def forward(self, *columns):
        return torch.softmax(self.scores(*columns), dim=1)


def columns(some):
    """The columns of some rows by name, as tensors of one column each."""
    x = torch.tensor([[float(row[name]) for name in names] for row in some])
    return dict(zip(names, x.split(1, dim=1)))


rows = [row for row in run.inputs.rows("table") if all(row.values())]  # rows with an empty cell are left out
names = [name for name in rows[0] if name != LABEL and name not in IGNORE]
labels = sorted({row[LABEL] for row in rows})
# A quarter of the rows judges. The content of a row decides, so a row that has judged a
# champion is never learned from later, when there are more rows.
judges = [zlib.crc32(repr([row[name] for name in names]).encode()) % 4 == 0 for row in rows]
learn, judge = [r for r, j in zip(rows, judges) if not j], [r for r, j in zip(rows, judges) if j]
print(f"{len(learn)} rows to learn from, {len(judge)} to judge by: columns {names}, labels {labels}", flush=True)

x, y = columns(learn).values(), torch.tensor([labels.index(row[LABEL]) for row in learn])
model = Classifier(torch.cat(list(x), dim=1), len(labels))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
begin, saved = 0, run.checkpoint.folder / "state.pt"
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["epoch"]
    print(f"continues after epoch {begin}", flush=True)

for epoch in range(begin + 1, EPOCHS + 1):
    loss = nn.functional.cross_entropy(model.scores(*x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % EVERY == 0:
        run.log(step=epoch, total=EPOCHS, loss=loss.item())
    if epoch % EVERY == 0 or leaving:
        with run.checkpoint.writing("state.pt") as part:
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    if leaving:
        sys.exit(f"asked to leave after epoch {epoch}; the checkpoint has it")

sample, champion = columns(judge), run.champion  # the promoted model, or None: both answer for the same rows
truth = [row[LABEL] for row in judge]
with torch.no_grad():
    scores = model.scores(*sample.values())
    loss = nn.functional.cross_entropy(scores, torch.tensor([labels.index(label) for label in truth]))
run.predictions(truth, [labels[i] for i in scores.argmax(dim=1)], champion.predict(sample) if champion else None)
run.metrics(rows=len(rows), loss=loss.item())
run.save(model, sample, labels=labels)
