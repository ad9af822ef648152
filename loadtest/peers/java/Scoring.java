import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.TensorInfo;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.core.StreamWriteFeature;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;

/**
 * Scores one event with ONNX Runtime. The numbers go from Jackson's stream parser into one direct
 * buffer, which is the model's input, so an event needs no list of numbers and no tensor of its own.
 */
final class Scoring {
    private final JsonFactory json = JsonFactory.builder()
        .enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER)
        .enable(StreamWriteFeature.USE_FAST_DOUBLE_WRITER)
        .build();
    private final String stream;
    private final String[] labels;
    private final OrtSession session;
    private final FloatBuffer in;
    private final FloatBuffer out;
    private final Map<String, OnnxTensor> inputs;
    private final Map<String, OnnxTensor> outputs;

    Scoring(String model, String stream) throws OrtException {
        this.stream = stream;
        OrtEnvironment env = OrtEnvironment.getEnvironment();
        OrtSession.SessionOptions options = new OrtSession.SessionOptions();
        options.setIntraOpNumThreads(1);
        options.setInterOpNumThreads(1);
        session = env.createSession(model, options);
        labels = session.getMetadata().getCustomMetadata().get("labels").split(",");
        var input = session.getInputInfo().entrySet().iterator().next();
        var output = session.getOutputInfo().keySet().iterator().next();
        int width = (int) ((TensorInfo) input.getValue().getInfo()).getShape()[1];
        in = floats(width);
        out = floats(labels.length);
        inputs = Map.of(input.getKey(), OnnxTensor.createTensor(env, in, new long[] {1, width}));
        outputs = Map.of(output, OnnxTensor.createTensor(env, out, new long[] {1, labels.length}));
    }

    private static FloatBuffer floats(int n) {
        return ByteBuffer.allocateDirect(4 * n).order(ByteOrder.nativeOrder()).asFloatBuffer();
    }

    /** Returns the answer to an event's data, as JSON. */
    byte[] answer(byte[] data) throws IOException, OrtException {
        read(data);
        session.run(inputs, Set.of(), outputs).close();
        int best = 0;
        for (int i = 1; i < labels.length; i++) {
            if (out.get(i) > out.get(best)) {
                best = i;
            }
        }
        var text = new ByteArrayOutputStream(1024);
        try (JsonGenerator g = json.createGenerator(text)) {
            g.writeStartObject();
            g.writeStringField("label", labels[best]);
            g.writeNumberField("score", out.get(best));
            g.writeObjectFieldStart("scores");
            for (int i = 0; i < labels.length; i++) {
                g.writeNumberField(labels[i], out.get(i));
            }
            g.writeEndObject();
            g.writeEndObject();
        }
        return text.toByteArray();
    }

    private void read(byte[] data) throws IOException {
        try (JsonParser p = json.createParser(data)) {
            while (p.nextToken() != JsonToken.START_ARRAY) {
                if (p.currentToken() == null) {
                    throw new IOException("an event's data has no list of numbers");
                }
            }
            int n = 0;
            while (p.nextToken() != JsonToken.END_ARRAY) {
                in.put(n++, p.getFloatValue());
            }
            if (n != in.capacity()) {
                throw new IOException("an event has " + n + " numbers, and the model needs " + in.capacity());
            }
        }
    }

    /** Returns the headers of an answer: a CloudEvent whose id is the place of the event. */
    Headers headers(Headers of, int partition, long offset) {
        var h = new RecordHeaders();
        h.add("ce_specversion", ascii("1.0"));
        h.add("ce_id", ascii(stream + "/" + partition + "/" + offset));
        h.add("ce_source", ascii("/java/scorer"));
        h.add("ce_type", ascii("tidemill.scored"));
        h.add("ce_subject", value(of, "ce_subject"));
        h.add("ce_time", value(of, "ce_time"));
        h.add("content-type", ascii("application/json"));
        h.add("ce_model", ascii("load/" + new String(value(of, "ce_subject"))));
        h.add("ce_modelversion", ascii("1"));
        h.add("ce_causationid", value(of, "ce_id"));
        h.add("ce_causationsource", value(of, "ce_source"));
        return h;
    }

    private static byte[] value(Headers of, String name) {
        Header h = of.lastHeader(name);
        return h == null ? new byte[0] : h.value();
    }

    private static byte[] ascii(String text) {
        return text.getBytes(java.nio.charset.StandardCharsets.US_ASCII);
    }
}
