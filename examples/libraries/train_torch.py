"""Learns the state of a pump with PyTorch."""
import torch
from torch import nn

from readings import STATES, split
from tidemill import run

EPOCHS = 200
x, y, test_x, test_y = split(run.inputs.frame("readings"))
given, test_given = (torch.tensor(table.to_numpy(), dtype=torch.float32) for table in (x, test_x))
states, test_states = (torch.tensor([STATES.index(state) for state in column]) for column in (y, test_y))


class Scale(nn.Module):
    """Brings the columns to the same size. The model then has the scale in its file."""

    def __init__(self, rows):
        super().__init__()
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("deviation", rows.std(0))

    def forward(self, rows):
        return (rows - self.mean) / self.deviation


torch.manual_seed(1)
network = nn.Sequential(Scale(given), nn.Linear(given.shape[1], 32), nn.ReLU(), nn.Linear(32, len(STATES)))
optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
wrong = nn.CrossEntropyLoss()

begin, checkpoint = 0, run.checkpoint.folder / "state.pt"
if checkpoint.exists():  # an earlier attempt was interrupted
    begin, weights, steps = torch.load(checkpoint)
    network.load_state_dict(weights)
    optimizer.load_state_dict(steps)

for epoch in range(begin + 1, EPOCHS + 1):
    optimizer.zero_grad()
    wrong(network(given), states).backward()
    optimizer.step()
    if epoch % 20 == 0:
        with run.checkpoint.writing("state.pt") as path:
            torch.save([epoch, network.state_dict(), optimizer.state_dict()], path)
        with torch.no_grad():
            run.log(epoch, total=EPOCHS, loss=wrong(network(test_given), test_states))

with torch.no_grad():
    predicted = [STATES[i] for i in network(test_given).argmax(1)]
champion = run.champion.predict(test_x) if run.champion else None
run.predictions(test_y, predicted, champion=champion)
run.save(nn.Sequential(network, nn.Softmax(1)), test_x, labels=STATES)  # a score for each state
