package history

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
)

// world is a Kafka with a stream of messages and outcomes, and a store.
type world struct {
	testing.TB
	o       Options
	produce *broker.Producer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t}
	s, err := embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = s.Close() })
	names, err := tidemill.NewNames("test")
	w.must(err)
	w.o.Broker, err = broker.Open(t.Context(), broker.Options{Addr: s.Kafka(), Names: names})
	w.must(err)
	t.Cleanup(func() { _ = w.o.Broker.Close() })
	_, err = w.o.Broker.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: "messages", Partitions: 2}, {Name: tidemill.StreamOutcomes, Partitions: 3}}, broker.EnsureOptions{})
	w.must(err)
	w.produce, err = w.o.Broker.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.produce.Close(context.Background()) })
	w.o.Store, err = store.Open(t.Context(), store.Options{URL: t.TempDir()})
	w.must(err)
	t.Cleanup(func() { w.must(w.o.Store.Close()) })
	w.o.Scorer, w.o.Last = config.Scorer{Name: "intents", From: "messages"}, time.Hour
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) publish(stream string, v broker.View) string {
	w.Helper()
	r, err := w.produce.Publish(w.Context(), stream, &v)
	w.must(err)
	at := r.Position()
	return at.Place()
}

func (w *world) outcome(d tidemill.OutcomeData, more ...broker.Attribute) {
	w.Helper()
	data, err := json.Marshal(d)
	w.must(err)
	w.publish(tidemill.StreamOutcomes, broker.View{ID: d.Place, Source: "/tidemill/test/outcomes", Type: tidemill.TypeOutcome, Subject: d.Key, Key: []byte(d.Key), DataContentType: "application/json", Data: data,
		Extensions: append([]broker.Attribute{{Name: tidemill.AttrScorer, Value: d.Scorer}}, more...)})
}

// read returns the rows of the file that Write has stored.
func (w *world) read(in tidemill.Input) (all []Row) {
	w.Helper()
	file, err := w.o.Store.File(w.Context(), in.Tree, File)
	w.must(err)
	r, err := w.o.Store.OpenFile(w.Context(), file)
	w.must(err)
	defer func() { w.must(r.Close()) }()
	if file.Size != in.Bytes || in.Files != 1 {
		w.Errorf("%+v of %+v", file, in)
	}
	for d := json.NewDecoder(bufio.NewReader(r)); ; {
		var row Row
		err := d.Decode(&row)
		if errors.Is(err, io.EOF) {
			return all
		}
		w.must(err)
		all = append(all, row)
	}
}

// A run gets the outcomes of its key, each once with its last truth, and the events that were answered.
func TestOutcomesAreWritten(t *testing.T) {
	w := newWorld(t)
	var places []string
	for _, data := range []string{`{"text":"a"}`, `plain text`, `{"text":"c"}`} {
		places = append(places, w.publish("messages", broker.View{ID: "m", Source: "/chat", Type: "message", Subject: "bot-1", Data: []byte(data)}))
	}
	gone := strings.TrimSuffix(places[2], "/2") + "/99"
	for i, place := range []string{places[2], places[0], places[1], gone} {
		w.outcome(tidemill.OutcomeData{Scorer: "intents", Key: "bot-1", Model: "m", Version: 1, Place: place, Label: "x", Truth: []string{"x", "y", "x", "x"}[i], Revision: 1})
	}
	w.outcome(tidemill.OutcomeData{Scorer: "intents", Key: "bot-1", Model: "m", Version: 1, Place: places[0], Label: "x", Truth: "z", Before: "y", Revision: 2})
	w.outcome(tidemill.OutcomeData{Scorer: "intents", Key: "bot-2", Model: "m", Version: 1, Place: "messages/1/7", Label: "x", Truth: "z", Revision: 1})
	w.outcome(tidemill.OutcomeData{Scorer: "other", Key: "bot-1", Model: "m", Version: 1, Place: places[1], Label: "x", Truth: "z", Revision: 1})
	w.o.Key = "bot-1"
	in, err := Write(t.Context(), w.o)
	w.must(err)
	rows := w.read(in)
	if len(rows) != 4 || in.Rows != 4 || in.Outcomes != "intents" || len(in.Read) != 1 { // only the key's partition was read
		t.Fatalf("%d rows, %+v", len(rows), in)
	}
	for i, want := range []struct{ data, truth string }{{`{"text":"a"}`, "z"}, {`"plain text"`, "x"}, {`{"text":"c"}`, "x"}, {"", "x"}} {
		r := rows[i]
		if data := ""; r.Event != nil {
			if data = string(r.Event.Data); data != want.data || r.Event.Source != "/chat" || r.Event.Subject != "bot-1" || r.Event.ID != "m" {
				t.Errorf("row %d has the event %+v with %s", i, r.Event, data)
			}
		} else if want.data != "" {
			t.Errorf("row %d has no event", i)
		}
		if r.Truth != want.truth || r.Of.Truth != want.truth {
			t.Errorf("row %d has the truth %q, want %q", i, r.Truth, want.truth)
		}
	}
	again, err := Write(t.Context(), w.o)
	if err != nil || again.Tree != in.Tree {
		t.Errorf("the same outcomes have another tree: %+v, %v", again, err)
	}
	w.o.Key = "bot-2"
	if of, err := Write(t.Context(), w.o); err != nil || of.Rows != 1 {
		t.Errorf("another key: %+v, %v", of, err)
	}
	w.o.Key = ""
	if all, err := Write(t.Context(), w.o); err != nil || all.Rows != 5 {
		t.Errorf("all keys: %+v, %v", all, err)
	}
	w.o.Key = "bot-9"
	if none, err := Write(t.Context(), w.o); err != nil || none.Rows != 0 || len(w.read(none)) != 0 {
		t.Errorf("a key without outcomes: %+v, %v", none, err)
	}
}

// The stream was created again, and another event has the place of one that was answered. The row has no event.
func TestAnotherEventHasThePlace(t *testing.T) {
	w := newWorld(t)
	for i, cause := range []string{"m-0", "old"} {
		place := w.publish("messages", broker.View{ID: "m-" + strconv.Itoa(i), Source: "/chat", Type: "message", Subject: "bot-1", Data: []byte("x")})
		w.outcome(tidemill.OutcomeData{Scorer: "intents", Key: "bot-1", Model: "m", Version: 1, Place: place, Label: "x", Truth: "x", Revision: 1},
			broker.Attribute{Name: tidemill.AttrCausationID, Value: cause}, broker.Attribute{Name: tidemill.AttrCausationSource, Value: "/chat"})
	}
	in, err := Write(t.Context(), w.o)
	w.must(err)
	rows := w.read(in)
	if len(rows) != 2 || rows[0].Event == nil || rows[0].Event.ID != "m-0" || rows[1].Event != nil {
		t.Errorf("the rows are %+v", rows)
	}
}

// The scorer read another stream before, which was deleted. The rows of its events have no event.
func TestTheStreamOfTheEventsIsGone(t *testing.T) {
	w := newWorld(t)
	here := w.publish("messages", broker.View{ID: "m", Source: "/chat", Type: "message", Subject: "bot-1", Data: []byte("x")})
	for _, place := range []string{"deleted/0/7", here, "deleted/3/9"} {
		w.outcome(tidemill.OutcomeData{Scorer: "intents", Key: "bot-1", Model: "m", Version: 1, Place: place, Label: "x", Truth: "x", Revision: 1})
	}
	in, err := Write(t.Context(), w.o)
	w.must(err)
	events := map[string]bool{}
	for _, r := range w.read(in) {
		events[r.Of.Place] = r.Event != nil
	}
	if len(events) != 3 || !events[here] || events["deleted/0/7"] || events["deleted/3/9"] {
		t.Errorf("places with their events: %v", events)
	}
}

// BenchmarkPlan writes the input of one key of many, as each plan of a run does.
func BenchmarkPlan(b *testing.B) {
	const keys, each = 1000, 200
	w := newWorld(b)
	send := func(stream string, v broker.View) {
		w.produce.Send(b.Context(), stream, &v, func(_ broker.Receipt, err error) { w.must(err) })
	}
	for i := range keys * each {
		key := "bot-" + strconv.Itoa(i%keys)
		send("messages", broker.View{ID: strconv.Itoa(i), Source: "/chat", Type: "message", Subject: key, Data: []byte(`{"text":"where is my parcel, it should have arrived yesterday"}`)})
		d := tidemill.OutcomeData{Scorer: "intents", Key: key, Model: "intent/" + key, Version: 1, Place: "messages/" + strconv.Itoa(int(broker.PartitionOf([]byte(key), 2))) + "/" + strconv.Itoa(i/2),
			Label: "track-order", Score: 0.9, Scores: map[string]float64{"track-order": 0.9, "refund": 0.1}, Truth: "refund", Revision: 1}
		data, err := json.Marshal(d)
		w.must(err)
		send(tidemill.StreamOutcomes, broker.View{ID: d.Place, Source: "/tidemill/test/outcomes", Type: tidemill.TypeOutcome, Subject: key, Key: []byte(key), DataContentType: "application/json", Data: data,
			Extensions: []broker.Attribute{{Name: tidemill.AttrScorer, Value: d.Scorer}}})
	}
	w.must(w.produce.Flush(b.Context()))
	w.o.Key = "bot-1"
	for b.Loop() {
		if in, err := Write(b.Context(), w.o); err != nil || in.Rows != each {
			b.Fatalf("%+v, %v", in, err)
		}
	}
}
