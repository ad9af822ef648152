"""Models of Keras with TensorFlow: saved, checked and asked."""

from __future__ import annotations

import os
import pathlib
import tempfile
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import pandas as pd  # noqa: E402

from tidemill import Champion, Run, SaveError  # noqa: E402


def table() -> pd.DataFrame:
    """Return 1,000 rows of numbers with very different sizes."""
    rng = np.random.default_rng(1)
    return pd.DataFrame({"amount": rng.gamma(2, 500, 1000), "age of card": rng.integers(0, 60, 1000), "output": rng.random(1000)})


def network(x: pd.DataFrame, *layers: keras.Layer) -> keras.Model:
    """Return a network that scales its input by the mean and the deviation of each column."""
    scale = keras.layers.Normalization()
    scale.adapt(x.to_numpy("float32"))
    return keras.Sequential([keras.Input((x.shape[1],)), scale, *layers])


class Saved(unittest.TestCase):
    """Each test has a folder for the output."""

    def setUp(self) -> None:
        keras.utils.set_random_seed(1)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.out = pathlib.Path(temporary.name)
        self.run_ = Run({"TIDEMILL_RUN": "r1", "TIDEMILL_OUT": temporary.name})

    @property
    def champion(self) -> Champion:
        """The files as they are now."""
        return Champion(self.out)

    def test_a_classifier_of_columns(self) -> None:
        x = table()
        model = network(x, keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5),
                        keras.layers.Dense(3, activation="softmax"))
        self.run_.save(model, x, labels=["a", "b", "c"])
        want = model.predict(x.to_numpy("float32"), verbose=0)
        self.assertEqual(self.champion.predict(x), [["a", "b", "c"][i] for i in want.argmax(axis=1)])
        np.testing.assert_allclose(self.champion.scores(x), want, atol=1e-5)
        inputs = [i.name for i in onnx.load(self.out / "model.onnx").graph.input]
        self.assertEqual(inputs, ["amount", "age of card", "output"])
        self.assertIn('labels: ["a", "b", "c"]\ngolden: {"inputs": {"amount": [[', (self.out / "model.yaml").read_text())

    def test_a_regressor_of_an_array(self) -> None:
        x = table()
        model = network(x, keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1))
        self.run_.save(model, x.to_numpy())
        want = model.predict(x.to_numpy("float32"), verbose=0)
        np.testing.assert_allclose(self.champion.predict(x.to_numpy()), want[:, 0], atol=1e-5)
        self.assertIn('"features": [[', (self.out / "model.yaml").read_text())

    def test_pictures(self) -> None:
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.MaxPooling2D(),
                                  keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")])
        x = np.random.default_rng(1).random((20, 8, 8, 1), dtype=np.float32)
        self.run_.save(model, x, labels=["cat", "dog"], name="pixels")
        np.testing.assert_allclose(self.champion.scores(x), model.predict(x, verbose=0), atol=1e-5)

    def test_several_inputs(self) -> None:
        a, b = keras.Input((1,), name="a"), keras.Input((2,), name="b")
        model = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))
        x = {"first": np.random.rand(5, 1), "the second": np.random.rand(5, 2)}
        self.run_.save(model, x)
        want = model.predict([v.astype("float32") for v in x.values()], verbose=0)
        np.testing.assert_allclose(self.champion.predict(x), want[:, 0], atol=1e-5)

    def test_what_cannot_be_saved(self) -> None:
        x = table()
        with self.assertRaisesRegex(SaveError, "2 labels"):
            self.run_.save(network(x, keras.layers.Dense(3)), x, labels=["a", "b"])
        a = keras.Input((3,))
        with self.assertRaisesRegex(TypeError, "the model has 2 outputs, and one is wanted"):
            self.run_.save(keras.Model(a, [keras.layers.Dense(1)(a), keras.layers.Dense(2)(a)]), x)
        self.assertEqual(os.listdir(self.out), [])

    def test_a_checkpoint(self) -> None:
        x = table()
        model = network(x, keras.layers.Dense(1))
        run = Run({"TIDEMILL_RUN": "r1", "TIDEMILL_CHECKPOINT": str(self.out / "checkpoint")})
        for _ in range(2):
            with run.checkpoint.writing("model.keras") as path:
                model.save(path)
        self.assertEqual(os.listdir(run.checkpoint.folder), ["model.keras"])
        again = keras.saving.load_model(run.checkpoint.folder / "model.keras")
        np.testing.assert_array_equal(again.predict(x.to_numpy("float32"), verbose=0), model.predict(x.to_numpy("float32"), verbose=0))


if __name__ == "__main__":
    unittest.main()
