"""Scores a topic as a tuned Python consumer does, exactly once, until it is ended:
confluent-kafka with transactions, orjson, and ONNX Runtime for a whole poll at once.
"""

import sys

import numpy
import onnxruntime
import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

POLL = 1000  # the events of a transaction


def main(addr, source, target, group, model, stream):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    labels = session.get_modelmeta().custom_metadata_map["labels"].split(",")
    consumer = Consumer({
        "bootstrap.servers": addr, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "fetch.min.bytes": 100_000, "fetch.wait.max.ms": 100, "queued.min.messages": 10_000,
    })
    producer = Producer({
        "bootstrap.servers": addr, "transactional.id": group, "linger.ms": 100, "batch.size": 1_000_000,
        "queue.buffering.max.messages": 1_000_000,
    })
    producer.init_transactions()
    consumer.subscribe([source])
    while True:
        polled = consumer.consume(num_messages=POLL, timeout=0.1)
        if not polled:
            continue
        for message in polled:
            if message.error():
                raise RuntimeError(message.error())
        rows = numpy.array([orjson.loads(message.value())[name] for message in polled], dtype=numpy.float32)
        scores = session.run(None, {name: rows})[0]
        producer.begin_transaction()
        for message, row, best in zip(polled, scores.tolist(), scores.argmax(axis=1).tolist()):
            of = dict(message.headers())
            answer = {"label": labels[best], "score": row[best], "scores": dict(zip(labels, row))}
            producer.produce(target, key=message.key(), value=orjson.dumps(answer), headers=[
                ("ce_specversion", b"1.0"),
                ("ce_id", b"%s/%d/%d" % (stream.encode(), message.partition(), message.offset())),
                ("ce_source", b"/python/scorer"),
                ("ce_type", b"tidemill.scored"),
                ("ce_subject", of["ce_subject"]),
                ("ce_time", of["ce_time"]),
                ("content-type", b"application/json"),
                ("ce_model", b"load/" + of["ce_subject"]),
                ("ce_modelversion", b"1"),
                ("ce_causationid", of["ce_id"]),
                ("ce_causationsource", of["ce_source"]),
            ])
        after = {message.partition(): message.offset() + 1 for message in polled}
        places = [TopicPartition(source, partition, offset) for partition, offset in after.items()]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata())
        producer.commit_transaction()


main(*sys.argv[1:])
