package watcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/drift"
)

const file = `
version: 1
streams: {messages: , scored: , verdicts: }
scorers:
  bots:
    from: messages
    to: scored
    model: "intent/{key}"
    labels: {from: verdicts, match: {id: data.of}, truth: data.truth, wait: 1d}
    drift: {inputs: [length, country], reference: 200, falseAlarms: 5/d, reports: 1000/h}
`

func scorer(t testing.TB) config.Scorer {
	t.Helper()
	c, err := config.Parse("tidemill.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return c.Scorers[0]
}

// bot is a simulated customer of a model.
type bot struct {
	r       *rand.Rand
	name    string
	version int
	refunds float64 // share of the label refund
	right   float64
	length  float64
	country string
	missing float64
}

func newBot(i int) *bot {
	return &bot{r: rand.New(rand.NewPCG(uint64(i), 1)), name: fmt.Sprint("bot-", i), version: 3, refunds: 0.1, right: 0.9, length: 40, country: "DE"}
}

// message is an event of the bot, the answer to it, and its outcome.
func (b *bot) message(n int) (in, answer, outcome broker.View) {
	id := fmt.Sprint(b.name, "-", n)
	country := `,"country":"` + b.country + `"`
	if b.r.Float64() < b.missing {
		country = ""
	}
	in = broker.View{ID: id, Source: "/bots", Type: "message", Subject: b.name,
		Data: fmt.Appendf(nil, `{"text":"hello","length":%.1f%s}`, b.length+10*b.r.NormFloat64(), country)}
	label := "order"
	if b.r.Float64() < b.refunds {
		label = "refund"
	}
	attrs := []broker.Attribute{{Name: tidemill.AttrModel, Value: "intent/" + b.name}, {Name: tidemill.AttrModelVersion, Value: strconv.Itoa(b.version)}}
	answer = broker.View{ID: "messages/0/" + id, Source: "/tidemill/tidemill/scorer/bots", Type: tidemill.TypeScored, Subject: b.name, Extensions: attrs,
		Data: fmt.Appendf(nil, `{"label":%q,"score":%.6f,"scores":{"order":0.5,"refund":0.5}}`, label, b.r.Float64())}
	truth := label
	if b.r.Float64() >= b.right {
		truth = "other"
	}
	outcome = broker.View{ID: "outcome-" + id, Source: "/tidemill/outcomes", Type: tidemill.TypeOutcome, Subject: b.name,
		Extensions: append(attrs[:2:2], broker.Attribute{Name: tidemill.AttrScorer, Value: "bots"})}
	outcome.Data, _ = json.Marshal(tidemill.OutcomeData{Scorer: "bots", Key: b.name, Version: b.version, Label: label, Truth: truth})
	return in, answer, outcome
}

// fact is a published fact, as far as tests compare it.
type fact struct{ typ, key, model, figure string }

func factOf(v *broker.View) fact {
	model, _ := v.Attribute(tidemill.AttrModel)
	figure, _ := v.Attribute(tidemill.AttrFigure)
	return fact{v.Type, v.Subject, model, figure}
}

// feed gives events to a watcher without a broker.
type feed struct {
	t       testing.TB
	w       *watcher
	offsets map[string]int64
	now     time.Time
}

func newFeed(t testing.TB, publish func(*broker.View)) *feed {
	t.Helper()
	names, err := tidemill.NewNames("")
	if err != nil {
		t.Fatal(err)
	}
	w := newWatcher(Options{Names: names, Scorer: scorer(t), Logger: slog.New(slog.DiscardHandler),
		OpenAlarm: func(context.Context, string, *tidemill.ModelDrifted) (int, error) { return 0, nil },
		Publish:   func(_ context.Context, v *broker.View) error { publish(v); return nil }})
	w.refill = time.Now()
	return &feed{t: t, w: w, offsets: map[string]int64{}, now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
}

func (f *feed) put(stream string, v broker.View) {
	if err := f.w.take(f.t.Context(), &broker.Delivery{Stream: stream, Events: []broker.Incoming{{View: v, Offset: f.offsets[stream], Time: f.now}}}); err != nil {
		f.t.Fatal(err)
	}
	f.offsets[stream]++
}

func (f *feed) message(b *bot, n int) {
	in, answer, outcome := b.message(n)
	f.put("messages", in)
	f.put("scored", answer)
	f.put(tidemill.StreamOutcomes, outcome)
	f.now = f.now.Add(time.Second)
}

func (f *feed) tell(t testing.TB) {
	t.Helper()
	if err := f.w.tellTurns(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A watcher that is stopped, saved and continued elsewhere after every message publishes the same facts, with the
// same content, and has the same state to the byte.
func TestASavedWatchGoesOn(t *testing.T) {
	t.Parallel()
	var one, other []broker.View
	a, b := newFeed(t, func(v *broker.View) { one = append(one, v.Clone()) }), newFeed(t, func(v *broker.View) { other = append(other, v.Clone()) })
	ab, bb := newBot(1), newBot(1)
	for n := range 2000 {
		if n == 700 {
			ab.refunds, bb.refunds, ab.country, bb.country = 0.5, 0.5, "NL", "NL"
		}
		if n == 1500 {
			ab.refunds, bb.refunds = 0.1, 0.1
		}
		a.message(ab, n)
		a.w.rest = 1
		a.tell(t)
		b.message(bb, n)
		state, err := b.w.encode()
		if err != nil {
			t.Fatal(err)
		}
		b.w = newWatcher(b.w.Options)
		if fresh, err := b.w.decode(state); fresh || err != nil {
			t.Fatal(fresh, err)
		}
		b.w.rest = 1
		b.tell(t)
	}
	x, err := a.w.encode()
	y, failed := b.w.encode()
	if err != nil || failed != nil || string(x) != string(y) {
		t.Errorf("the states have %d and %d bytes, errors %v and %v, or differ", len(x), len(y), err, failed)
	}
	var facts []fact
	for i := range one {
		facts = append(facts, factOf(&one[i]))
	}
	model := func(typ, figure string) fact { return fact{typ, "bot-1", "intent/bot-1", figure} }
	want := []fact{model(tidemill.TypeModelDrifted, "labels"), model(tidemill.TypeModelDrifted, "input.country"), model(tidemill.TypeModelDriftEnded, "labels")}
	byText := func(x, y fact) int { return cmp.Compare(fmt.Sprint(x), fmt.Sprint(y)) }
	slices.SortFunc(facts, byText)
	slices.SortFunc(want, byText)
	if !reflect.DeepEqual(facts, want) {
		t.Errorf("the facts are %v, want %v", facts, want)
	}
	if !reflect.DeepEqual(one, other) {
		t.Errorf("without a stop\n%+v\nwith stops\n%+v", one, other)
	}
	if _, err := newWatcher(a.w.Options).decode(x[:len(x)-1]); err == nil {
		t.Error("a state without its last byte was read")
	}
}

// A watch that has lost its state does not report again what the model's facts still have, and continues its count.
func TestAWatchWithoutItsStateReportsNothingTwice(t *testing.T) {
	t.Parallel()
	var facts []fact
	var alarms []int
	f := newFeed(t, func(v *broker.View) {
		var d tidemill.ModelDrifted
		if err := json.Unmarshal(v.Data, &d); err != nil {
			t.Fatal(err)
		}
		facts, alarms = append(facts, factOf(v)), append(alarms, d.Alarm)
	})
	f.w.OpenAlarm = func(_ context.Context, model string, d *tidemill.ModelDrifted) (int, error) {
		if model == "intent/bot-1" && d.Scorer == "bots" && d.Version == 3 && d.Figure == tidemill.FigureLabels {
			return 7, nil
		}
		return 0, nil
	}
	b := newBot(1)
	for n := range 2000 {
		if n == 700 {
			b.refunds, b.country = 0.5, "NL"
		}
		if n == 1500 {
			b.refunds = 0.1
		}
		f.message(b, n)
		f.w.rest = 1
		f.tell(t)
	}
	want := []fact{{tidemill.TypeModelDrifted, "bot-1", "intent/bot-1", "input.country"}, {tidemill.TypeModelDriftEnded, "bot-1", "intent/bot-1", "labels"}}
	if !slices.Equal(facts, want) || !slices.Equal(alarms, []int{1, 7}) {
		t.Errorf("the facts are %v of the alarms %v", facts, alarms)
	}
}

// A figure that returns before the turn of its report may be reported already, by a watch that has lost its state since.
// Then its end is reported.
func TestADriftThatReturnsBeforeItsTurn(t *testing.T) {
	t.Parallel()
	for open, want := range map[int][]fact{
		0: nil,
		7: {{tidemill.TypeModelDriftEnded, "bot-1", "intent/bot-1", "labels"}},
	} {
		var facts []fact
		f := newFeed(t, func(v *broker.View) {
			var d tidemill.ModelDriftEnded
			if err := json.Unmarshal(v.Data, &d); err != nil || d.Alarm != open {
				t.Errorf("published %s: %v", v.Data, err)
			}
			facts = append(facts, factOf(v))
		})
		f.w.OpenAlarm = func(context.Context, string, *tidemill.ModelDrifted) (int, error) { return open, nil }
		f.w.rest = 0
		b, waited := newBot(1), false
		for n := range 2000 {
			if n == 700 {
				b.refunds = 0.5
			}
			if n == 1200 {
				b.refunds = 0.1
			}
			f.message(b, n)
			waited = waited || len(f.w.Waiting) > 0
		}
		f.tell(t)
		if !waited || !slices.Equal(facts, want) || len(f.w.Waiting) > 0 {
			t.Errorf("with the open alarm %d the facts are %v, and %v waits", open, facts, f.w.Waiting)
		}
		if got := f.w.models["intent/bot-1"].Figures[drift.Label].Alarms; int(got) != max(1, open) {
			t.Errorf("with the open alarm %d the count goes on from %d", open, got)
		}
	}
}

// A watch that has lost its state reports what it reads again under the same ids, and later alarms under others.
func TestAlarmsAfterALossOfTheStateHaveOtherIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kept, err := store.Open(t.Context(), store.Options{URL: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		ids := map[string]bool{}
		f := newFeed(t, func(v *broker.View) { ids[strings.Clone(v.ID)] = true })
		f.w.Store = kept
		drifts := func(want int) {
			t.Helper()
			b := newBot(1)
			for n := range 600 {
				if n == 300 {
					b.refunds = 0.5
				}
				f.message(b, n)
			}
			f.w.rest = 1
			if f.tell(t); len(ids) != want {
				t.Errorf("%d alarms, want %d", len(ids), want)
			}
		}
		restart := func() {
			t.Helper()
			f.w = newWatcher(f.w.Options)
			if err := f.w.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.w.refill = time.Now()
		}
		f.now = time.Now()
		drifts(1)
		time.Sleep(time.Hour)
		restart()
		f.now = f.now.Add(-600 * time.Second)
		drifts(1) // the same events
		f.now = time.Now()
		restart()
		drifts(2)
		restart() // before the first save
		f.now = f.now.Add(-600 * time.Second)
		drifts(2)
	})
}

// A new champion begins again, a retired model has no state, and answers of other scorers do not count.
func TestAWatchForgets(t *testing.T) {
	t.Parallel()
	f := newFeed(t, func(v *broker.View) { t.Errorf("published %v", factOf(v)) })
	b := newBot(1)
	for n := range 400 {
		f.message(b, n)
	}
	if f.w.models["intent/bot-1"].Figures[0].Seen != 400 {
		t.Fatal("the answers were not counted")
	}
	b.version, b.refunds = 4, 0.6
	for n := range 600 {
		f.message(b, n)
	}
	m := f.w.models["intent/bot-1"]
	if m.Version != 4 || m.Figures[0].Seen != 600-31 {
		t.Errorf("version %d has %d answers", m.Version, m.Figures[0].Seen)
	}
	f.tell(t)
	_, foreign, _ := newBot(2).message(1)
	foreign.Source = "/tidemill/scorer/others"
	f.put("scored", foreign)
	f.put(tidemill.StreamFacts, broker.View{ID: "x", Source: "/tidemill/forget", Type: tidemill.TypeModelRetired,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "intent/bot-1"}}})
	f.now = f.now.Add(-time.Minute)
	f.message(b, 1001) // written before the removal and read after it
	if len(f.w.models) != 0 {
		t.Errorf("%d models are left", len(f.w.models))
	}
}

// The offsets of a stream that was created again begin at 2^44. A report names the partition, and the offset that Kafka has.
func TestAPlaceInAStreamThatIsCreatedAgain(t *testing.T) {
	t.Parallel()
	f, b := newFeed(t, func(*broker.View) {}), newBot(1)
	f.offsets["scored"] = 1 << 44
	for n := range f.w.watch.Reference + 1 {
		f.message(b, n)
	}
	if got := f.w.place(drift.Label, f.w.models["intent/bot-1"].Figures[drift.Label].Since[0]); got != "scored/0/200" {
		t.Errorf("the first answer after the reference is at %s", got)
	}
}

// An answer is read as encoding/json reads it.
func TestAnswersAreRead(t *testing.T) {
	t.Parallel()
	for data, want := range map[string][2]string{
		`{"label":"order","score":0.75,"scores":{"order":0.75}}`: {"order", "0.75"},
		`{"label":"a \"quoted\" one","score":-1e-7}`:             {`a "quoted" one`, "-1e-7"},
		`{"label":"order"}`:                      {"order", ""},
		`{"label":"order","score":null}`:         {"order", ""},
		`{"label":"order","scores":{"score":1}}`: {"order", ""},
		`{"values":[31.5,2]}`:                    {"", "31.5"},
		`{"scores":{"order":0.75}}`:              {"", ""},
		`{"label":`:                              {"", ""},
		`{"label":"cut`:                          {"", ""},
		`{"label":"order","score":`:              {"order", ""},
	} {
		if label, score := labelAndScore([]byte(data)); label != want[0] || score != want[1] {
			t.Errorf("%s: label %q and score %q, want %q", data, label, score, want)
		}
	}
}

// On the day on which the world changes for all models, they are reported at the chosen rate, the surest first.
func TestReportsComeAtAChosenRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const models, perHour = 90, 120
		var published []float64
		f := newFeed(t, func(v *broker.View) {
			var d tidemill.ModelDrifted
			if err := json.Unmarshal(v.Data, &d); err != nil {
				t.Fatal(err)
			}
			published = append(published, d.Evidence)
		})
		f.w.Scorer.Drift.Reports = perHour
		for i := range models {
			b := newBot(i)
			for n := range 400 {
				if n == 250 {
					b.refunds = 0.45 + 0.005*float64(i)
				}
				_, answer, _ := b.message(n)
				f.put("scored", answer)
			}
		}
		waiting := len(f.w.Waiting)
		if waiting < models*9/10 {
			t.Fatalf("only %d of %d models drifted", waiting, models)
		}
		f.w.refill = time.Now()
		var counts []int
		for range 60 {
			f.tell(t)
			counts = append(counts, len(published))
			time.Sleep(time.Minute)
		}
		if counts[0] > 2 || counts[10] < 18 || counts[10] > 2*11 || counts[59] != waiting {
			t.Errorf("reported after each minute: %v", counts)
		}
		if !slices.IsSortedFunc(published, func(a, b float64) int { return cmp.Compare(b, a) }) {
			t.Errorf("the evidence of the reports is %v", published)
		}
	})
}

const waitLimit = time.Minute

// The watcher runs on a broker, is stopped in the middle, and continues from its saved state.
func TestModelsThatDriftAreReported(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	servers, err := embedded.Start(ctx, embedded.Options{})
	must(err)
	t.Cleanup(func() { _ = servers.Close() })
	names, err := tidemill.NewNames("")
	must(err)
	b, err := broker.Open(ctx, broker.Options{Addr: servers.Kafka(), Names: names})
	must(err)
	t.Cleanup(func() { _ = b.Close() })
	var specs []broker.StreamSpec
	for _, name := range []string{"messages", "scored", tidemill.StreamOutcomes, tidemill.StreamFacts} {
		specs = append(specs, broker.StreamSpec{Name: name, Partitions: 3})
	}
	_, err = b.EnsureStreams(ctx, specs, broker.EnsureOptions{})
	must(err)
	p, err := b.Producer(broker.ProducerOptions{})
	must(err)
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	kept, err := store.Open(ctx, store.Options{URL: t.TempDir()})
	must(err)
	o := Options{Broker: b, Store: kept, Names: names, Scorer: scorer(t), Logger: slog.New(slog.DiscardHandler),
		OpenAlarm: func(context.Context, string, *tidemill.ModelDrifted) (int, error) { return 0, nil },
		Publish: func(ctx context.Context, v *broker.View) error {
			_, err := p.Publish(ctx, tidemill.StreamFacts, v)
			return err
		}}

	bots := make([]*bot, 8)
	for i := range bots {
		bots[i] = newBot(i)
	}
	send := func(from, to int) {
		var all sync.WaitGroup
		for n := from; n < to; n++ {
			for _, b := range bots {
				in, answer, outcome := b.message(n)
				for stream, v := range map[string]broker.View{"messages": in, "scored": answer, tidemill.StreamOutcomes: outcome} {
					all.Add(1)
					p.Send(ctx, stream, &v, func(_ broker.Receipt, err error) {
						defer all.Done()
						if err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
		all.Wait()
	}
	run := func() (stop func()) {
		life, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- Run(life, o) }()
		return func() {
			end()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the watcher ended with %v", err)
			}
		}
	}
	facts, err := b.Consumer(ctx, broker.ConsumerOptions{Streams: []string{tidemill.StreamFacts}, Start: broker.Earliest()})
	must(err)
	defer func() { must(facts.Close(context.Background())) }()
	seen := map[string]bool{} // a report whose answer was lost in a stop comes again, with its id
	await := func(want map[fact]bool) {
		for len(want) > 0 {
			d, err := facts.Poll(ctx)
			if err != nil {
				t.Fatalf("not reported: %v: %v", want, err)
			}
			for i := range d.Events {
				is, again := factOf(&d.Events[i].View), seen[d.Events[i].ID]
				seen[strings.Clone(d.Events[i].ID)] = true
				if want[is] {
					delete(want, is)
				} else if !again {
					t.Errorf("reported: %v", is)
				}
			}
			d.Done()
		}
	}

	send(0, 600)
	bots[2].refunds = 0.6
	send(600, 1200)
	stop := run()
	drifted := func(i int, figure string) fact {
		return fact{tidemill.TypeModelDrifted, bots[i].name, "intent/" + bots[i].name, figure}
	}
	await(map[fact]bool{drifted(2, "labels"): true})
	stop()
	bots[3].right, bots[4].length, bots[5].missing = 0.5, 55, 0.3
	send(1200, 1900)
	stop = run()
	await(map[fact]bool{drifted(3, "accuracy"): true, drifted(4, "input.length"): true, drifted(5, "missing"): true})
	stop()
}

// The cost of an answer, and of an event with two watched inputs.
func BenchmarkTake(b *testing.B) {
	for _, stream := range []string{"scored", "messages"} {
		b.Run(stream, func(b *testing.B) {
			f := newFeed(b, func(*broker.View) {})
			const models = 20_000
			d := &broker.Delivery{Stream: stream}
			for i := range models {
				in, answer, _ := newBot(i).message(1)
				f.put("scored", answer)
				if stream == "scored" {
					in = answer
				}
				d.Events = append(d.Events, broker.Incoming{View: in, Time: f.now})
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range (b.N + models - 1) / models {
				if err := f.w.take(b.Context(), d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// With the run's predictions as the reference, a champion whose first answers already differ is reported. One without
// enough predictions has its first answers as the reference.
func TestPredictionsAreTheReference(t *testing.T) {
	var facts []fact
	f := newFeed(t, func(v *broker.View) { facts = append(facts, factOf(v)) })
	f.w.Scorer.Drift.Predictions = true
	asked := 0
	f.w.Predictions = func(_ context.Context, model string, version int) (*tidemill.Figures, error) {
		asked++
		refunds := map[string]int{"intent/bot-1": 400, "intent/bot-2": 100}[model] // of 1000; both answer refund to 10 %
		if refunds == 0 || version != 3 {
			return nil, nil
		}
		return &tidemill.Figures{Examples: 1000, Classes: []tidemill.Class{{Label: "order", Predicted: 1000 - refunds}, {Label: "refund", Predicted: refunds}},
			Cells: []tidemill.Cell{{Truth: 0, Predicted: 0, Count: 1000 - refunds}, {Truth: 1, Predicted: 0, Count: 100}, {Truth: 1, Predicted: 1, Count: refunds - 100}}}, nil
	}
	for i := range 3 {
		b := newBot(i + 1)
		for n := range 600 {
			f.message(b, n)
		}
	}
	f.tell(t)
	if want := []fact{{tidemill.TypeModelDrifted, "bot-1", "intent/bot-1", tidemill.FigureLabels}}; !slices.Equal(facts, want) {
		t.Errorf("the facts are %v, want %v", facts, want)
	}
	if asked != 3 {
		t.Errorf("the predictions were read %d times, want once for each version", asked)
	}
	broken := errors.New("the store is away")
	f.w.Predictions = func(context.Context, string, int) (*tidemill.Figures, error) { return nil, broken }
	_, answer, _ := newBot(9).message(0)
	err := f.w.take(t.Context(), &broker.Delivery{Stream: "scored", Events: []broker.Incoming{{View: answer}}})
	if !errors.Is(err, broken) {
		t.Errorf("without the store: %v", err)
	}
}

// Places in a stream that was created again are saved at once: a watcher that begins after a crash would continue the old
// ones in the new stream.
func TestACutIsSavedAtOnce(t *testing.T) {
	f := newFeed(t, func(*broker.View) {})
	for err, at := range map[error]bool{broker.ErrDeleted: false, broker.ErrCut: true} {
		f.w.saved = time.Now()
		if err := f.w.take(t.Context(), &broker.Delivery{Stream: "scored", Events: []broker.Incoming{{Offset: -1, Err: err}}}); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(f.w.saved) >= saveEvery; got != at {
			t.Errorf("%v: saves at once: %t", err, got)
		}
	}
}

// A state that cannot be read, for example after a power cut, does not end the watch for ever: it begins again.
func TestAStateThatCannotBeReadBeginsAgain(t *testing.T) {
	f := newFeed(t, func(*broker.View) {})
	b := newBot(1)
	for n := range 100 {
		f.message(b, n)
	}
	good, err := f.w.encode()
	if err != nil {
		t.Fatal(err)
	}
	f.w.Store, err = store.Open(t.Context(), store.Options{URL: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.w.Store.Close() })
	for name, state := range map[string][]byte{"empty": nil, "cut off": good[:len(good)-1], "no JSON": []byte("{")} {
		if err := f.w.Store.PutNote(t.Context(), f.w.note(), state); err != nil {
			t.Fatal(err)
		}
		w := newWatcher(f.w.Options)
		if err := w.load(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(w.models)+len(w.Places) > 0 || w.silent != 0 {
			t.Errorf("%s: %d models, places %v", name, len(w.models), w.Places)
		}
	}
}
