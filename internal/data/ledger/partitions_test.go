package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// grow gives the stream of facts more partitions, as an operator could by hand.
func (w *world) grow(partitions int) {
	w.t.Helper()
	client := kafka.Client{Addr: kafka.TCP(w.address)}
	_, err := client.CreatePartitions(w.t.Context(), &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: w.names.Topic(tidemill.StreamFacts), Count: int32(partitions)}}})
	must(w.t, err)
}

// stopped waits until a ledger has stopped, and checks that it decides nothing and says why.
func (w *world) stopped(l *ledger.Ledger, reason string) {
	w.t.Helper()
	waitUntil(w.t, l, "it goes on", func() bool { return l.Status().Stopped })
	_, _, err := l.Claim(w.t.Context(), ask(0, ledger.Admission{Recipe: "intent"}), time.Now())
	_, readErr := l.Making(w.t.Context(), "intent", "bot-1")
	before, endsErr := w.broker.Ends(w.t.Context(), tidemill.StreamFacts)
	must(w.t, endsErr)
	v, _ := (&script{}).runRequest("intent", "bot-1", "stopped", nil)
	_, _, appendErr := l.Append(w.t.Context(), v)
	after, endsErr := w.broker.Ends(w.t.Context(), tidemill.StreamFacts)
	must(w.t, endsErr)
	if !slices.Equal(before, after) {
		w.t.Errorf("it has put a fact on the log: the ends were %v and are %v", before, after)
	}
	for _, err := range []error{err, readErr, appendErr, l.Status().Err} {
		if err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), "runbooks/") {
			w.t.Errorf("it says %v, not %q", err, reason)
		}
	}
	if !errors.Is(readErr, ledger.ErrCatchingUp) {
		w.t.Errorf("a read says %v", readErr)
	}
	if l.Status().Behind == 0 {
		w.t.Error("it is not behind")
	}
}

// If the stream of facts gets more partitions, most keys move, and the order of a key's facts is
// lost. The ledger stops: no request is on the log and ignored.
func TestFactsGetPartitions(t *testing.T) {
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	for i := range 20 {
		v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), "c", nil)
		w.add(l, v)
	}
	w.grow(8)
	w.stopped(l, "had 2 partitions and has 8")
	fresh := w.openWith(w.options())
	w.stopped(fresh, "had 2 partitions and has 8")

	for i := range 20 { // keys that have moved get further facts
		v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), "later", nil)
		_, err := w.produce.Publish(t.Context(), tidemill.StreamFacts, v)
		must(t, err)
	}
	must(t, w.redis.FlushAll(t.Context()).Err())
	w.stopped(w.openWith(w.options()), "belongs to partition")
}

// A fact that was written to a new partition's share of the keys stops a running ledger at once, before
// it knows of the new partitions.
func TestAFactOfAnotherPartition(t *testing.T) {
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	v, _ := s.runRequest("intent", "bot-1", "c", nil)
	w.add(l, v)
	other, _ := s.runRequest("intent", "bot-2", "c", nil)
	wrong := 1 - broker.PartitionOf(other.Key, 2)
	client := kafka.Client{Addr: kafka.TCP(w.address)}
	var headers []kafka.Header
	for name, value := range map[string]string{"specversion": "1.0", "id": other.ID, "source": other.Source, "type": other.Type, "subject": other.Subject,
		"time": other.Time, tidemill.AttrRecipe: "intent"} {
		headers = append(headers, kafka.Header{Key: "ce_" + name, Value: []byte(value)})
	}
	_, err := client.Produce(t.Context(), &kafka.ProduceRequest{Topic: w.names.Topic(tidemill.StreamFacts), Partition: int(wrong), RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Key: kafka.NewBytes(other.Key), Value: kafka.NewBytes(other.Data), Headers: headers})})
	must(t, err)
	w.stopped(l, "belongs to partition")
}
