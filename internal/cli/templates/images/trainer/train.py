"""Learns the label of small images with scikit-learn: a neural network of one hidden layer.

The name of an image's folder is its label. The model needs no ONNX Runtime: Tidemill's own
engine runs it.
"""
import zlib

import numpy as np
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

import image
from tidemill import run

SIZE = 12  # width and height that images are scaled to
EPOCHS = 60

files = [f for f in run.inputs.files("images") if f.suffix in (".png", ".jpg", ".jpeg")]
x = np.stack([image.read(f, SIZE) for f in files])
y = np.array([f.parent.name for f in files])
labels = sorted(set(y.tolist()))

# A quarter of the images judges. The content of an image decides, so an image that has judged
# a champion is never learned from later, when there are more images.
judge = np.array([zlib.crc32(f.read_bytes()) % 4 == 0 for f in files])
learn_x, learn_y, judge_x, judge_y = x[~judge], y[~judge], x[judge], y[judge]
print(f"{len(learn_x)} images to learn from, {len(judge_x)} to judge by: labels {labels}", flush=True)

classifier = MLPClassifier([64], alpha=0.1, learning_rate_init=0.01, random_state=1)
flat, judge_flat = learn_x.reshape(len(learn_x), -1), judge_x.reshape(len(judge_x), -1)
for epoch in range(1, EPOCHS + 1):
    classifier.partial_fit(flat, learn_y, classes=labels)
    if epoch % 5 == 0:
        run.log(step=epoch, total=EPOCHS, loss=log_loss(judge_y, classifier.predict_proba(judge_flat), labels=labels))

champion = run.champion  # the promoted model, or None: both answer for the same images
run.predictions(judge_y, classifier.predict(judge_flat), champion.predict(judge_x) if champion else None)
run.metrics(rows=len(files))
image.save(run.out, classifier, judge_x)
