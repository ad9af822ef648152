import inference.GRPCInferenceServiceGrpc;
import inference.GrpcService.InferTensorContents;
import inference.GrpcService.ModelInferRequest;
import inference.GrpcService.ModelInferResponse;
import inference.GrpcService.ModelReadyRequest;
import inference.GrpcService.ServerLiveRequest;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.List;

/** Asks a gateway with a client that protoc has made from the protocol's own description: Ask HOST:PORT */
public final class Ask {
  public static void main(String[] args) throws Exception {
    ManagedChannel channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    GRPCInferenceServiceGrpc.GRPCInferenceServiceBlockingStub stub = GRPCInferenceServiceGrpc.newBlockingStub(channel);
    expect(stub.serverLive(ServerLiveRequest.getDefaultInstance()).getLive(), "live");
    expect(stub.modelReady(ModelReadyRequest.newBuilder().setName("intent/bot-1").build()).getReady(), "ready");
    ModelInferResponse answer = stub.modelInfer(request("intent/bot-1"));
    ModelInferResponse.InferOutputTensor likely = answer.getOutputs(0);
    List<Float> values = likely.getContents().getFp32ContentsList();
    expect(answer.getId().equals("7") && answer.getModelVersion().equals("1"), answer.toString());
    expect(likely.getShapeList().equals(List.of(2L, 2L)) && values.get(0) > 0.99 && values.get(2) == 0.5, answer.toString());
    try {
      stub.modelInfer(request("intent/none"));
      expect(false, "a model without a champion has answered");
    } catch (StatusRuntimeException e) {
      expect(e.getStatus().getCode() == Status.Code.NOT_FOUND, e.toString());
    }
    channel.shutdownNow();
  }

  private static ModelInferRequest request(String model) {
    InferTensorContents contents = InferTensorContents.newBuilder().addAllFp32Contents(List.of(1f, 0f, 0f, 0f)).build();
    return ModelInferRequest.newBuilder().setModelName(model).setId("7").addInputs(
        ModelInferRequest.InferInputTensor.newBuilder().setName("x").setDatatype("FP32").addShape(2).addShape(2).setContents(contents)).build();
  }

  private static void expect(boolean right, String text) {
    if (!right) {
      throw new AssertionError(text);
    }
  }
}
