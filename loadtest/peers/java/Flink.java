import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Scores a topic with Flink, exactly once, until SIGTERM: one task slot, all operators in one chain
 * that passes objects on, and a checkpoint each second, at which its sink commits.
 */
public final class Flink {
    public static void main(String[] args) throws Exception {
        String addr = args[0], in = args[1], out = args[2], group = args[3], model = args[4], stream = args[5];
        var c = new Configuration();
        c.setString("execution.checkpointing.interval", "1 s");
        c.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        c.setString("pipeline.object-reuse", "true");
        c.setString("taskmanager.memory.managed.size", "16m");
        var env = StreamExecutionEnvironment.createLocalEnvironment(1, c);
        var consumer = new Properties();
        consumer.put("fetch.min.bytes", "100000");
        consumer.put("fetch.max.wait.ms", "100");
        var producer = new Properties();
        producer.put("transaction.timeout.ms", "600000");
        producer.put("batch.size", "200000");
        producer.put("linger.ms", "100");
        var source = KafkaSource.<ConsumerRecord<byte[], byte[]>>builder()
            .setBootstrapServers(addr).setTopics(in).setGroupId(group).setProperties(consumer)
            .setStartingOffsets(OffsetsInitializer.earliest()).setDeserializer(new AsItIs()).build();
        KafkaRecordSerializationSchema<ProducerRecord<byte[], byte[]>> made = (r, context, time) -> r;
        var sink = KafkaSink.<ProducerRecord<byte[], byte[]>>builder()
            .setBootstrapServers(addr).setKafkaProducerConfig(producer).setRecordSerializer(made)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE).setTransactionalIdPrefix(group).build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "events")
            .map(new Scorer(model, stream, out)).returns(new TypeHint<ProducerRecord<byte[], byte[]>>() {})
            .sinkTo(sink);
        env.execute();
    }

    private static final class AsItIs implements KafkaRecordDeserializationSchema<ConsumerRecord<byte[], byte[]>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> r, Collector<ConsumerRecord<byte[], byte[]>> to) {
            to.collect(r);
        }

        @Override
        public TypeInformation<ConsumerRecord<byte[], byte[]>> getProducedType() {
            return TypeInformation.of(new TypeHint<ConsumerRecord<byte[], byte[]>>() {});
        }
    }

    private static final class Scorer extends RichMapFunction<ConsumerRecord<byte[], byte[]>, ProducerRecord<byte[], byte[]>> {
        private final String model;
        private final String stream;
        private final String out;
        private transient Scoring scoring;

        Scorer(String model, String stream, String out) {
            this.model = model;
            this.stream = stream;
            this.out = out;
        }

        @Override
        public void open(OpenContext context) throws Exception {
            scoring = new Scoring(model, stream);
        }

        @Override
        public ProducerRecord<byte[], byte[]> map(ConsumerRecord<byte[], byte[]> r) throws Exception {
            return new ProducerRecord<>(out, null, r.key(), scoring.answer(r.value()), scoring.headers(r.headers(), r.partition(), r.offset()));
        }
    }
}
