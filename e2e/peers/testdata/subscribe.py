"""A subscriber that answers each event with the event that it read, in the encoding of
Python's cloudevents.

usage: subscribe.py; prints its address. The path chooses the mode of its answers:
/binary, /structured or /batch, with two events.
"""
import base64
import itertools
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings.http import HTTPMessage, from_http, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

FORMAT = JSONFormat()
COUNT = itertools.count()


def text(value):
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def seen(event):
    read = {"attributes": {name: text(value) for name, value in event.get_attributes().items()}}
    data = event.get_data()
    if isinstance(data, bytes):
        read["base64"] = base64.b64encode(data).decode()
    elif isinstance(data, str):
        read["text"] = data
    elif data is not None:
        read["json"] = data
    return read


def echo(event):
    attributes = {"id": f"own-{next(COUNT)}", "source": "/peers/python", "type": "echo", "specversion": "1.0", "datacontenttype": "application/json"}
    if event.get_subject():
        attributes["subject"] = event.get_subject()
    return CloudEvent(attributes, seen(event))


def answer(mode, event):
    if mode == "binary":
        return to_binary(echo(event), FORMAT)
    if mode == "structured":
        return to_structured(echo(event), FORMAT)
    body = b"[" + b",".join(FORMAT.write(echo(event)) for _ in range(2)) + b"]"
    return HTTPMessage({"content-type": "application/cloudevents-batch+json"}, body)


class Subscriber(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        try:
            event = from_http(HTTPMessage(dict(self.headers.items()), body), FORMAT)
            status, reply = 200, answer(self.path.strip("/"), event)
        except Exception as err:  # the dead letter shall contain any error
            status, reply = 400, HTTPMessage({"content-type": "text/plain"}, str(err).encode())
        self.send_response(status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Subscriber)
print("127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
