"""Asks a gateway with Triton's own clients and their defaults: python triton.py HTTP GRPC PROTO_SET"""

import queue
import sys

import numpy
import tritonclient.grpc
import tritonclient.http
from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

MODEL = "intent/bot-1"
ROWS = numpy.array([[1, 0], [0, 0]], dtype=numpy.float32)


def inputs(of):
    x = of.InferInput("x", ROWS.shape, "FP32")
    x.set_data_from_numpy(ROWS)
    return [x]


def check(result, version="1"):
    likely = result.as_numpy("likely")
    assert likely.shape == (2, 2) and likely.dtype == numpy.float32, likely
    assert likely[0][0] > 0.99 and likely[1][0] == 0.5, likely


def common(of, client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    check(client.infer(MODEL, inputs(of)))
    check(client.infer(MODEL, inputs(of), model_version="1", request_id="7", outputs=[of.InferRequestedOutput("likely")]))
    client.load_model(MODEL)
    try:
        client.infer("intent/none", inputs(of))
        raise AssertionError("a model without a champion has answered")
    except InferenceServerException as e:
        assert "has no champion" in e.message(), e


def http(url):
    with tritonclient.http.InferenceServerClient(url) as client:
        common(tritonclient.http, client)
        assert client.get_server_metadata()["name"] == "tidemill"
        assert client.get_model_metadata(MODEL)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
        assert [m["name"] for m in client.get_model_repository_index()] == [MODEL]
        check(client.infer(MODEL, inputs(tritonclient.http), request_compression_algorithm="gzip", response_compression_algorithm="gzip"))
        text = tritonclient.http.InferInput("x", ROWS.shape, "FP32")
        text.set_data_from_numpy(ROWS, binary_data=False)
        check(client.infer(MODEL, [text], outputs=[tritonclient.http.InferRequestedOutput("likely", binary_data=False)]))


def grpc(url):
    with tritonclient.grpc.InferenceServerClient(url) as client:
        common(tritonclient.grpc, client)
        assert client.get_server_metadata().name == "tidemill"
        metadata = client.get_model_metadata(MODEL)
        assert metadata.inputs[0].name == "x" and list(metadata.inputs[0].shape) == [-1, 2], metadata
        assert [m.name for m in client.get_model_repository_index().models] == [MODEL]
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for n in range(3):
            client.async_stream_infer(MODEL, inputs(tritonclient.grpc), request_id=str(n))
        client.async_stream_infer("intent/none", inputs(tritonclient.grpc))
        for n in range(3):
            result, error = answers.get(timeout=30)
            assert error is None and result.get_response().id == str(n), error
            check(result)
        result, error = answers.get(timeout=30)
        assert result is None and "has no champion" in error.message(), error
        client.stop_stream()


def same_messages(path):
    """Compares our description of the messages with Triton's."""
    ours = descriptor_pb2.FileDescriptorSet()
    with open(path, "rb") as f:
        ours.ParseFromString(f.read())
    file = ours.file[0]
    theirs = service_pb2.DESCRIPTOR.pool

    def compare(prefix, messages):
        for m in messages:
            name = prefix + "." + m.name
            if m.options.map_entry or m.name in ("RepositoryModelLoadResponse", "RepositoryModelUnloadResponse"):
                continue  # KServe's have more fields than Triton's
            other = theirs.FindMessageTypeByName(name)
            for f in m.field:
                o = other.fields_by_name[f.name]
                assert (f.number, f.type, f.label == f.LABEL_REPEATED) == (o.number, o.type, o.is_repeated), (name, f.name)
            compare(name, m.nested_type)

    assert file.package == "inference" and len(file.message_type) > 15
    compare("inference", file.message_type)
    service = theirs.FindServiceByName("inference.GRPCInferenceService")
    for m in file.service[0].method:
        o = service.methods_by_name[m.name]
        assert (m.input_type, m.output_type) == ("." + o.input_type.full_name, "." + o.output_type.full_name), m.name
        assert (m.client_streaming, m.server_streaming) == (o.client_streaming, o.server_streaming), m.name


http(sys.argv[1])
grpc(sys.argv[2])
same_messages(sys.argv[3])
