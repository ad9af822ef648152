"""Scores events as a team's own Python consumer would: with confluent-kafka and
settings that suit it, json, and ONNX Runtime for one event at a time. It is one
process, because its interpreter uses one core.

It commits records before their outputs are written, which is in its favour. Its
only argument is its task as JSON, and it prints its measurement as JSON.
"""

import json
import os
import resource
import sys
import time

import numpy
import onnxruntime
from confluent_kafka import Consumer, Producer


class Shelf:
    """The models that have been loaded."""

    def __init__(self, folder):
        self.folder = folder
        self.models = {}
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = 1
        self.options.inter_op_num_threads = 1

    def find(self, subject):
        found = self.models.get(subject)
        if found is None:
            path = os.path.join(self.folder, subject + ".onnx")
            session = onnxruntime.InferenceSession(path, self.options, providers=["CPUExecutionProvider"])
            labels = session.get_modelmeta().custom_metadata_map.get("labels", "")
            labels = json.loads(labels) if labels.startswith("[") else labels.split(",")
            first = session.get_inputs()[0]
            found = self.models[subject] = (session, first.name, first.type, labels)
        return found


class Scorer:
    def __init__(self, task):
        self.task = task
        self.shelf = Shelf(task["Models"])
        self.consumer = Consumer({
            "bootstrap.servers": task["Addr"],
            "group.id": task["Group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
        })
        self.consumer.subscribe([task["Topic"]])
        self.producer = Producer({
            "bootstrap.servers": task["Addr"],
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1000000,
        })
        self.failed = None

    def delivered(self, error, _message):
        if error is not None:
            self.failed = error

    def score(self, message):
        headers = {name: (value or b"").decode() for name, value in message.headers() or []}
        value = json.loads(message.value())[self.task["Input"]]
        session, name, kind, labels = self.shelf.find(headers["ce_subject"])
        if kind == "tensor(string)":
            row = numpy.array([value], dtype=object)
        else:
            row = numpy.array([value], dtype=numpy.float32)
        scores = session.run(None, {name: row})[0][0]
        best = int(scores.argmax())
        answer = {
            "label": labels[best],
            "score": float(scores[best]),
            "scores": {label: float(score) for label, score in zip(labels, scores)},
        }
        position = "%s/%d/%d" % (message.topic(), message.partition(), message.offset())
        self.producer.produce(
            self.task["Out"],
            key=message.key(),
            value=json.dumps(answer),
            partition=message.partition(),
            headers={
                "ce_specversion": "1.0",
                "ce_id": position,
                "ce_source": "/python/scorer",
                "ce_type": "com.example.scored",
                "ce_subject": headers["ce_subject"],
                "ce_time": headers["ce_time"],
                "content-type": "application/json",
                "ce_model": headers["ce_subject"],
                "ce_modelversion": "1",
                "ce_causationid": headers["ce_id"],
                "ce_causationsource": headers["ce_source"],
            },
            on_delivery=self.delivered,
        )

    def pump(self, count):
        done = 0
        while done < count:
            for message in self.consumer.consume(num_messages=min(500, count - done), timeout=1.0):
                if message.error():
                    raise RuntimeError(message.error())
                self.score(message)
                done += 1
            self.producer.poll(0)
        self.producer.flush()
        if self.failed is not None:
            raise RuntimeError(self.failed)


def main():
    task = json.loads(sys.argv[1])
    scorer = Scorer(task)
    scorer.pump(task["Warm"])
    begun, usage = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    scorer.pump(task["Records"])
    wall, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
    system = now.ru_stime - usage.ru_stime
    scorer.consumer.close()
    print(json.dumps({
        "Records": task["Records"],
        "Wall": int(wall * 1e9),
        "CPU": int((now.ru_utime - usage.ru_utime + system) * 1e9),
        "System": int(system * 1e9),
    }))


main()
