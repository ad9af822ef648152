"""Serves an ONNX model with MLServer, on one core: no worker processes, because they only
help with more cores, and no access log.
"""

import asyncio
import sys

import numpy
import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceResponse
from mlserver.utils import install_uvloop_event_loop


class Network(MLModel):
    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload):
        tensor = payload.inputs[0]
        rows = NumpyCodec.decode_input(tensor).astype(numpy.float32, copy=False)
        scores = self.session.run(None, {tensor.name: rows})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", scores)])


async def main(name, model, port, grpc_port):
    server = MLServer(Settings(
        host="127.0.0.1", http_port=int(port), grpc_port=int(grpc_port), metrics_endpoint=None,
        parallel_workers=0, debug=False,
    ))
    await server.start([ModelSettings(name=name, implementation=Network, parameters=ModelParameters(uri=model))])


install_uvloop_event_loop()
asyncio.run(main(*sys.argv[1:]))
