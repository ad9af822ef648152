"""Serves an ONNX model with KServe's own Python server, on one core: one worker process,
and no log of requests.
"""

import logging
import sys
import uuid

import onnxruntime
from kserve import InferOutput, InferResponse, Model, ModelServer


class Network(Model):
    def __init__(self, name, path):
        super().__init__(name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        tensor = payload.inputs[0]
        scores = self.session.run(None, {tensor.name: tensor.as_numpy()})[0]
        output = InferOutput(name="probabilities", shape=list(scores.shape), datatype="FP32")
        output.set_data_from_numpy(scores, binary_data=False)
        return InferResponse(response_id=payload.id or uuid.uuid4().hex, model_name=self.name, infer_outputs=[output])


for log in ("uvicorn.access", "kserve.trace"):
    logging.getLogger(log).addFilter(lambda _: False)
name, path, port, _ = sys.argv[1:]
sys.argv = sys.argv[:1]  # the server reads it too
ModelServer(http_port=int(port), enable_grpc=False, workers=1, enable_latency_logging=False).start([Network(name, path)])
