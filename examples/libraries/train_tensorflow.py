"""Learns the state of a pump with Keras and TensorFlow."""
import keras
from keras import layers

from readings import STATES, split
from tidemill import run

EPOCHS = 40
x, y, test_x, test_y = split(run.inputs.frame("readings"))
given, test_given = x.to_numpy("float32"), test_x.to_numpy("float32")
states, test_states = (column.map(STATES.index).to_numpy() for column in (y, test_y))


class Progress(keras.callbacks.Callback):
    """Reports the loss and saves a checkpoint after every fourth epoch."""

    def on_epoch_end(self, epoch, logs):
        if (epoch + 1) % 4 == 0:
            with run.checkpoint.writing("model.keras") as path:
                self.model.save(path)
            run.checkpoint.save("epoch", epoch + 1)
            run.log(epoch + 1, total=EPOCHS, loss=logs["val_loss"])


begin = run.checkpoint.load("epoch", 0)
if begin:  # an earlier attempt was interrupted
    model = keras.saving.load_model(run.checkpoint.folder / "model.keras")
else:
    keras.utils.set_random_seed(1)
    scale = layers.Normalization()  # brings the columns to the same size
    scale.adapt(given)
    model = keras.Sequential([keras.Input(given.shape[1:]), scale, layers.Dense(32, "relu"), layers.Dense(len(STATES), "softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
model.fit(given, states, initial_epoch=begin, epochs=EPOCHS, validation_data=(test_given, test_states), callbacks=[Progress()], verbose=0)

predicted = [STATES[i] for i in model.predict(test_given, verbose=0).argmax(1)]
champion = run.champion.predict(test_x) if run.champion else None
run.predictions(test_y, predicted, champion=champion)
run.save(model, test_x, labels=STATES)
