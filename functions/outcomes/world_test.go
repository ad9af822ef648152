package outcomes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

// patience is how long a test waits for an expected state; it measures nothing.
const patience = 2 * time.Minute

const (
	streamAnswers = "scored"
	streamLabels  = "verdicts"
)

// world is a laptop's Kafka with the streams of a scorer.
type world struct {
	testing.TB
	kafka *embedded.Servers
	names tidemill.Names
	b     *broker.Broker
	p     *broker.Producer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t}
	s, err := embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = s.Close() })
	w.kafka = s
	w.names, err = tidemill.NewNames("prod")
	w.must(err)
	w.b, err = broker.Open(t.Context(), broker.Options{Addr: s.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { _ = w.b.Close() })
	_, err = w.b.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: tidemill.StreamCommands, Partitions: 1}, {Name: tidemill.StreamOutcomes, Partitions: 3},
		{Name: tidemill.StreamDeadLetters, Partitions: 2, MaxMessageBytes: 10 << 20}, {Name: streamAnswers, Partitions: 3}, {Name: streamLabels, Partitions: 2}}, broker.EnsureOptions{})
	w.must(err)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.p.Close(context.Background()) })
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// scorer returns the config of the tests' scorer, named s.
func scorer(wait time.Duration, missing string) config.Scorer {
	return config.Scorer{Name: "s", From: "messages", To: streamAnswers, Key: "subject", Model: "m/{key}",
		Labels: &config.Labels{From: streamLabels, ID: "data.of", Truth: "data.truth", Wait: wait, Missing: missing}}
}

// options returns the options of one owner.
func (w *world) options(c config.Scorer) Options {
	return Options{Broker: w.b, Names: w.names, Config: c, Dir: w.TempDir(), Logger: slog.New(slog.NewTextHandler(w.Output(), nil))}
}

// runs runs an owner until the returned function is called, which returns its error. The owner has begun when runs returns.
func (w *world) runs(o Options) (stop func() error) {
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	stop = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(patience):
			return errors.New("the owner does not end")
		}
	}
	w.Cleanup(func() { _ = stop() })
	w.begins(o.Config)
	return stop
}

// begins waits until the group has offsets of both streams of a scorer. The first owner of a stream leaves out events that are
// a wait older than its start, so a test publishes after that.
func (w *world) begins(c config.Scorer) {
	w.Helper()
	for _, stream := range []string{c.To, c.Labels.From} {
		ends, err := w.b.Ends(w.Context(), stream)
		w.must(err)
		w.awaits("the owner to begin", func() bool {
			found, err := w.b.Committed(w.Context(), Group(c.Name), ends)
			w.must(err)
			return slices.ContainsFunc(found, func(p broker.Position) bool { return p.Offset >= 0 })
		})
	}
}

// answer publishes the answer to the n-th input, whose id is i-N.
func (w *world) answer(n int, key, verdict string) {
	w.Helper()
	v := answerEvent(w.names, n, key, verdict)
	_, err := w.p.Publish(w.Context(), streamAnswers, &v)
	w.must(err)
}

func answerEvent(names tidemill.Names, n int, key, verdict string) broker.View {
	return broker.View{ID: "messages/0/" + strconv.Itoa(n), Source: names.Source("scorer/s"), Type: tidemill.TypeScored, Subject: key, Time: "2026-01-02T03:04:05Z",
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeScored), Data: fmt.Appendf(nil, `{"label":%q,"score":0.750000,"scores":{"fraud":0.750000,"legit":0.250000}}`, verdict),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "m/" + key}, {Name: tidemill.AttrModelVersion, Value: "4"},
			{Name: tidemill.AttrCausationID, Value: "i-" + strconv.Itoa(n)}, {Name: tidemill.AttrCausationSource, Value: "/shop"}, {Name: tidemill.AttrLabelGroup, Value: "card-1"}}}
}

// label publishes a label for the n-th input.
func (w *world) label(id string, n int, truth string) {
	w.Helper()
	v := labelEvent(id, n, truth)
	_, err := w.p.Publish(w.Context(), streamLabels, &v)
	w.must(err)
}

func labelEvent(id string, n int, truth string) broker.View {
	return broker.View{ID: id, Source: "/bank", Type: "chargeback", Subject: strconv.Itoa(n), Time: "2026-01-03T00:00:00Z", DataContentType: "application/json",
		Data: fmt.Appendf(nil, `{"of":"i-%d","truth":%q}`, n, truth)}
}

// outcomes returns the outcomes on the log, in the order of each place, and fails if an id is there twice.
func (w *world) outcomes() map[string][]tidemill.OutcomeData {
	w.Helper()
	all, ids := map[string][]tidemill.OutcomeData{}, map[string]bool{}
	w.each(tidemill.StreamOutcomes, func(e *broker.Incoming) {
		var d tidemill.OutcomeData
		w.must(json.Unmarshal(e.Data, &d))
		if ids[e.ID] {
			w.Errorf("outcome %s was written twice", e.ID)
		}
		ids[strings.Clone(e.ID)] = true
		if string(e.Key) != d.Key {
			w.Errorf("%s: the record key is %q, and the key of the model %q", e.ID, e.Key, d.Key)
		}
		corrected := e.Type == tidemill.TypeOutcomeCorrected
		if corrected != (d.Revision > 1) || d.Revision != len(all[d.Place])+1 {
			w.Errorf("%s: type %s, revision %d after %d", e.ID, e.Type, d.Revision, len(all[d.Place]))
		}
		all[d.Place] = append(all[d.Place], d)
	})
	return all
}

// letters returns the reasons of the dead letters, by the id of their label.
func (w *world) letters() map[string]string {
	w.Helper()
	all := map[string]string{}
	w.each(tidemill.StreamDeadLetters, func(e *broker.Incoming) {
		var d struct{ Reason, OriginalID string }
		w.must(json.Unmarshal(e.Data, &d))
		all[d.OriginalID] = d.Reason
	})
	return all
}

func (w *world) each(stream string, fn func(*broker.Incoming)) {
	w.Helper()
	starts, err := w.b.Places(w.Context(), stream, broker.Earliest())
	w.must(err)
	_, err = w.b.ReadBack(w.Context(), starts, fn)
	w.must(err)
}

// awaits waits until a condition holds.
func (w *world) awaits(what string, ok func() bool) {
	w.Helper()
	until := time.After(patience)
	for tick := time.NewTicker(5 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-until:
			w.Fatalf("waited in vain: %s", what)
		}
	}
}

func place(n int) string { return "messages/0/" + strconv.Itoa(n) }
