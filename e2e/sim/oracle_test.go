package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"tidemill.dev/broker/embedded"
)

// oracle reads the streams with another Kafka client, and judges what the publishers, the
// subscribers and the agents saw. It shares no code with Tidemill.
type oracle struct {
	w       *world
	client  *kgo.Client
	records map[string][]record // by stream; in the order of each partition
	quiet   time.Time           // when the load and all faults had ended
	probes  map[string]int      // by the id of a message that the oracle has published: the place of the present champion among those of its model
}

// unpacker decompresses with kafka-go's codecs. The finalizers of kgo's own would close channels of
// the bubble from outside.
type unpacker struct{}

// Decompress returns the bytes of a batch.
func (unpacker) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	r := compress.Codecs[codec].NewReader(bytes.NewReader(src))
	defer r.Close()
	return io.ReadAll(r)
}

type record struct {
	partition int32
	offset    int64
	head      map[string]string
	value     string
	at        time.Time
}

func (r *record) id() string   { return r.head["ce_id"] }
func (r *record) typ() string  { return r.head["ce_type"] }
func (r *record) ours() bool   { return r.head["ce_source"] == "/sim" }
func (r *record) key() string  { return r.head["ce_subject"] }
func (r *record) spot() string { return fmt.Sprint(r.partition, "/", r.offset) }

func newOracle(w *world) (*oracle, error) {
	c, err := kgo.NewClient(append(w.kafka(),
		kgo.ConsumeRegex(), kgo.ConsumeTopics(`^tidemill\..*`), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.WithDecompressor(unpacker{}))...)
	o := &oracle{w: w, client: c, records: map[string][]record{}, quiet: time.Now()}
	if stalls := w.stalls.Load(); stalls != nil {
		for _, s := range *stalls {
			o.quiet = later(o.quiet, s.until)
		}
	}
	return o, err
}

// kafka returns the options of a client of the chaos host.
func (w *world) kafka() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(fmt.Sprint("127.0.0.1:", kafkaPort)),
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			if w.servers != nil {
				return w.chaos.Dial(ctx, network, w.servers.Kafka())
			}
			return w.chaos.Dial(ctx, network, at(w.procs[0].host.Load(), kafkaPort))
		})}
	if w.servers != nil {
		return opts
	}
	return append(opts, kgo.SASL(scram.Sha256(func(context.Context) (scram.Auth, error) {
		password, err := w.password(embedded.KafkaPasswordFile)
		return scram.Auth{User: embedded.UserName, Pass: password}, err
	})))
}

// read reads until nothing has come for two seconds.
func (o *oracle) read() {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		fetches := o.client.PollFetches(ctx)
		cancel()
		n := 0
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			one := record{partition: r.Partition, offset: r.Offset, head: map[string]string{}, value: string(r.Value), at: r.Timestamp}
			for _, h := range r.Headers {
				one.head[h.Key] = string(h.Value)
			}
			stream := strings.TrimPrefix(r.Topic, "tidemill.")
			o.records[stream] = append(o.records[stream], one)
		})
		if n == 0 {
			return
		}
	}
}

// complaints returns what is wrong, or not done yet.
func (o *oracle) complaints() (all []string) {
	o.read()
	all = append(o.drained(), o.contradictions()...)
	if len(all) == 0 {
		all = o.probed()
	}
	if len(all) == 0 {
		all = o.agreed()
	}
	return all
}

// contradictions returns what the streams and the outside have against each other. It holds the locks
// of the outside, so it may not wait for the network.
func (o *oracle) contradictions() (all []string) {
	o.w.posts.mu.Lock()
	defer o.w.posts.mu.Unlock()
	o.w.sub.mu.Lock()
	defer o.w.sub.mu.Unlock()
	o.w.agents.mu.Lock()
	defer o.w.agents.mu.Unlock()
	for _, check := range []func() []string{o.stored, o.delivered, o.inOrder, o.buried, o.committed, o.ran, o.begun, o.withinSlots, o.scored, o.labelled, o.judged, o.tried, o.rolledOut, o.ticked, o.remembered, o.welcomed} {
		all = append(all, check()...)
	}
	return all
}

// drained checks that each consumer group has passed the last record of its stream.
func (o *oracle) drained() (all []string) {
	for group, stream := range map[string]string{"triggers.events": "events", "triggers.facts": "facts", "scorer.intents": "messages"} {
		last := map[int32]int64{}
		for i := range o.records[stream] {
			r := &o.records[stream][i]
			last[r.partition] = max(last[r.partition], r.offset)
		}
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group = "tidemill." + group
		one := kmsg.NewOffsetFetchRequestGroup()
		one.Group = req.Group
		req.Groups = append(req.Groups, one)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		resp, err := req.RequestWith(ctx, o.client)
		cancel()
		if err != nil {
			all = append(all, fmt.Sprintf("read the offsets of %s: %v", req.Group, err))
			continue
		}
		passed := map[int32]int64{}
		for _, g := range resp.Groups {
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					if t.Topic == "tidemill."+stream {
						passed[p.Partition] = p.Offset
					}
				}
			}
		}
		for partition, offset := range last {
			if passed[partition] <= offset {
				all = append(all, fmt.Sprintf("group %s is at offset %d of %s/%d, whose last record has offset %d", req.Group, passed[partition], stream, partition, offset))
			}
		}
	}
	return all
}

// mostListed is the number of runs or models for which a gateway is asked.
const mostListed = 500

// agreed checks that all gateways report the same runs, models and rollouts, that these runs and models are those of the
// facts, and that verdicts can be computed again.
func (o *oracle) agreed() (all []string) {
	none := func(string) []string { return nil }
	for _, of := range []struct {
		path  string
		check func(string) []string
	}{{"/api/v1/runs?limit=500", o.sameRuns}, {"/api/v1/models?limit=500", o.sameModels}, {"/api/v1/rollouts", none}} {
		first, path := "", of.path
		for i, door := range o.w.doors() {
			status, text, err := o.get(door, path)
			switch {
			case err != nil || status != 200:
				all = append(all, fmt.Sprintf("%s of %s: %d %v %.300s", path, door.name, status, err, text))
			case i == 0:
				first = text
				all = append(all, of.check(text)...)
			case text != first:
				all = append(all, fmt.Sprintf("%s differs: %s\n%s", path, first, text))
			}
		}
	}
	if len(all) == 0 {
		all = append(o.rejudged(), o.kept()...)
	}
	return all
}
