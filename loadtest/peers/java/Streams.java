import java.nio.file.Files;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;

/**
 * Scores a topic with Kafka Streams, exactly once, until SIGTERM. Its settings are those that its
 * documents advise for throughput; a commit every 100 ms is the default of exactly_once_v2.
 */
public final class Streams {
    public static void main(String[] args) throws Exception {
        String addr = args[0], in = args[1], out = args[2], group = args[3], model = args[4], stream = args[5];
        var p = new Properties();
        p.put(StreamsConfig.APPLICATION_ID_CONFIG, group);
        p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, addr);
        p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        p.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory(java.nio.file.Path.of(model).getParent(), "streams").toString());
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MIN_BYTES_CONFIG), 100_000);
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG), 100);
        p.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 200_000);
        p.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 100);
        var b = new StreamsBuilder();
        b.stream(in, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .process(() -> new Scorer(model, stream))
            .to(out, Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        var streams = new KafkaStreams(b.build(), p);
        streams.setUncaughtExceptionHandler(e -> {
            e.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
    }

    private static final class Scorer extends ContextualProcessor<byte[], byte[], byte[], byte[]> {
        private final Scoring scoring;

        Scorer(String model, String stream) {
            try {
                scoring = new Scoring(model, stream);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public void process(Record<byte[], byte[]> r) {
            var at = context().recordMetadata().orElseThrow();
            try {
                context().forward(r.withValue(scoring.answer(r.value())).withHeaders(scoring.headers(r.headers(), at.partition(), at.offset())));
            } catch (Exception e) {
                throw new IllegalStateException("score " + at.topic() + "/" + at.partition() + "/" + at.offset(), e);
            }
        }
    }
}
