"""Asks a gateway with KServe's own clients and their defaults: python kserve_client.py HTTP GRPC"""

import asyncio
import sys

import numpy
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

MODEL = "intent/bot-1"
ROWS = numpy.array([[1, 0], [0, 0]], dtype=numpy.float32)


def request(binary):
    x = InferInput("x", list(ROWS.shape), "FP32")
    x.set_data_from_numpy(ROWS, binary_data=binary)
    return InferRequest(model_name=MODEL, infer_inputs=[x], request_id="7")


def check(answer):
    likely = answer.outputs[0].as_numpy()
    assert answer.outputs[0].name == "likely" and answer.id == "7", answer
    assert likely.shape == (2, 2) and likely[0][0] > 0.99 and likely[1][0] == 0.5, likely


async def main(http, grpc):
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await rest.is_server_live(http) and await rest.is_server_ready(http)
    assert await rest.is_model_ready(http, MODEL)
    for binary in (True, False):
        check(await rest.infer(http, request(binary), model_name=MODEL))
    await rest.close()
    client = InferenceGRPCClient(grpc)
    assert await client.is_server_live() and await client.is_server_ready()
    assert await client.is_model_ready(MODEL)
    for binary in (True, False):
        check(await client.infer(request(binary)))
    await client.close()


asyncio.run(main(sys.argv[1], sys.argv[2]))
