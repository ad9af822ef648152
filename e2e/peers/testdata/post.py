"""Posts the events of a file in every mode, as Python's cloudevents writes them.

usage: post.py URL EVENTS.json; prints the status of each answer.
"""
import base64
import json
import sys
import urllib.request
from datetime import datetime

from cloudevents.core.bindings.http import HTTPMessage, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

FORMAT = JSONFormat()


def event(entry, mode):
    attributes = {"id": f"python-{mode}-{entry['name']}", "specversion": "1.0", **entry["attributes"]}
    if "time" in attributes:
        attributes["time"] = datetime.fromisoformat(attributes["time"])
    data = entry.get("json", entry.get("text"))
    if "base64" in entry:
        data = base64.b64decode(entry["base64"])
    return CloudEvent(attributes, data)


def post(url, message):
    request = urllib.request.Request(url, data=message.body, headers=message.headers, method="POST")
    # urllib sends a body without a type as a form; an event without data has no type.
    if "content-type" not in message.headers:
        request.add_unredirected_header("Content-type", "")
    with urllib.request.urlopen(request) as answer:
        print(answer.status)


def batch(events):
    body = b"[" + b",".join(FORMAT.write(e) for e in events) + b"]"
    return HTTPMessage({"content-type": "application/cloudevents-batch+json"}, body)


def main(url, file):
    with open(file, encoding="utf-8") as f:
        entries = json.load(f)
    for entry in entries:
        post(url, to_binary(event(entry, "binary"), FORMAT))
        post(url, to_structured(event(entry, "structured"), FORMAT))
    post(url, batch([event(e, "batch") for e in entries]))


main(*sys.argv[1:])
