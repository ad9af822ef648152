"""Modules of PyTorch: saved, checked and asked."""

from __future__ import annotations

import os
import pathlib
import tempfile
import unittest

import numpy as np
import pandas as pd
import torch

from tidemill import Champion, Run, SaveError


class Two(torch.nn.Module):
    """A module with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([a, b], 1))


class Saved(unittest.TestCase):
    """Each test has a folder for the output."""

    def setUp(self) -> None:
        torch.manual_seed(1)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.out = pathlib.Path(temporary.name)
        self.run_ = Run({"TIDEMILL_RUN": "r1", "TIDEMILL_OUT": temporary.name, "TIDEMILL_CHECKPOINT": temporary.name + "/checkpoint"})

    @property
    def champion(self) -> Champion:
        """The files as they are now."""
        return Champion(self.out)

    def test_a_classifier(self) -> None:
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.ReLU(),
                                      torch.nn.Linear(8, 3), torch.nn.Softmax(1))
        x = torch.rand(50, 4)
        self.run_.save(network, x, labels=["a", "b", "c"], name="pixels")
        self.assertTrue(network.training, "the module goes on to train")
        network.eval()
        self.assertEqual(self.champion.predict(x.numpy()[:1]), [["a", "b", "c"][int(network(x[:1]).argmax())]])
        np.testing.assert_allclose(self.champion.scores(x.tolist()), network(x).detach().numpy(), atol=1e-5)
        self.assertIn('golden: {"inputs": {"pixels": [[', (self.out / "model.yaml").read_text())

    def test_several_inputs(self) -> None:
        network = Two()
        a, b = torch.rand(5, 1), torch.rand(5, 1)
        self.run_.save(network, {"a": a, "b": b})
        np.testing.assert_allclose(self.champion.predict({"b": b.numpy(), "a": a.numpy()}), network(a, b).detach().numpy()[:, 0], atol=1e-5)

    def test_columns_of_a_frame(self) -> None:
        x = pd.DataFrame({"output": np.random.rand(1000) * 100, "age of card": np.random.randint(0, 60, 1000)})
        network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2), torch.nn.Softmax(1))
        self.run_.save(network, x, labels=["a", "b"])
        want = network(torch.tensor(x.to_numpy(), dtype=torch.float32)).detach().numpy()
        np.testing.assert_allclose(self.champion.scores(x), want, atol=1e-5)
        self.assertIn('golden: {"inputs": {"output": [[', (self.out / "model.yaml").read_text())

    def test_wrong_labels(self) -> None:
        with self.assertRaisesRegex(SaveError, "2 labels"):
            self.run_.save(torch.nn.Linear(4, 3), torch.rand(5, 4), labels=["a", "b"])
        self.assertEqual(os.listdir(self.out), [])

    def test_a_checkpoint(self) -> None:
        network = torch.nn.Linear(2, 1)
        with self.run_.checkpoint.writing("network.pt") as path:
            torch.save(network.state_dict(), path)
        again = torch.nn.Linear(2, 1)
        again.load_state_dict(torch.load(self.run_.checkpoint.folder / "network.pt"))
        self.assertTrue(torch.equal(again.weight, network.weight))


if __name__ == "__main__":
    unittest.main()
