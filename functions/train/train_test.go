package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/runs/scheduler"
)

// desk records requests.
type desk struct {
	mu    sync.Mutex
	asked []scheduler.Request
	fail  func(n int, r scheduler.Request) error // error of the nth request, counted from 1
	keys  []string
	lists error
	notes map[string][]byte
	saves int // number of notes that were put
}

func (d *desk) Note(_ context.Context, name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if data, there := d.notes[name]; there {
		return data, nil
	}
	return nil, store.ErrNotFound
}

func (d *desk) PutNote(_ context.Context, name string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.notes == nil {
		d.notes = map[string][]byte{}
	}
	d.notes[name] = data
	d.saves++
	return nil
}

func (d *desk) RemoveNote(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.notes, name)
	return nil
}

func (d *desk) Request(_ context.Context, r scheduler.Request) (scheduler.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, r)
	if d.fail != nil {
		return scheduler.Answer{}, d.fail(len(d.asked), r)
	}
	return scheduler.Answer{Run: "x"}, nil
}

func (d *desk) Keys(_ context.Context, recipe string, fn func(string) bool) error {
	for _, k := range d.keys {
		if !fn(k) {
			break
		}
	}
	return d.lists
}

func (d *desk) train(r config.Recipe) functions.ViewFunc {
	c := &config.Config{Recipes: []config.Recipe{r}}
	return New(Options{Config: func() *config.Config { return c }, Asker: d, Keys: d.Keys, Progress: d}, "intent")
}

func recipe(key string, whens ...config.RecipeWhen) config.Recipe {
	return config.Recipe{Name: "intent", Key: key, When: whens}
}

func types(all ...string) config.RecipeWhen {
	return config.RecipeWhen{When: config.When{Types: all}}
}

func happened(typ, subject string, set func(*event.Event)) *broker.View {
	e := event.New()
	e.SetID("1")
	e.SetSource("/crm")
	e.SetType(typ)
	if subject != "" {
		e.SetSubject(subject)
	}
	if set != nil {
		set(&e)
	}
	v, err := broker.FromEvent(e)
	if err != nil {
		panic(err)
	}
	return &v
}

func data(contentType, text string) func(*event.Event) {
	return func(e *event.Event) { _ = e.SetData(contentType, []byte(text)) }
}

// status returns the status that the dispatcher gets for an error.
func status(t *testing.T, f functions.ViewFunc, v *broker.View) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(string(broker.MarshalStructured(v))))
	r.Header.Set("Content-Type", "application/cloudevents+json")
	w := httptest.NewRecorder()
	functions.ViewHandler(f, functions.Options{}).ServeHTTP(w, r)
	return w.Code
}

func TestKeys(t *testing.T) {
	t.Parallel()
	tick := config.RecipeWhen{Schedule: "nightly", When: config.When{Types: []string{tidemill.TypeScheduleTick}, Where: "schedule = 'nightly'"}}
	of := func(schedule string) func(*event.Event) {
		return func(e *event.Event) { e.SetExtension("schedule", schedule) }
	}
	for _, c := range []struct {
		name  string
		place string
		when  config.RecipeWhen
		e     *broker.View
		key   string // or
		fails string
	}{
		{"a subject", "subject", types("a"), happened("a", "bot-42", nil), "bot-42", ""},
		{"no subject", "subject", types("a"), happened("a", "", nil), "", "there is no text at subject"},
		{"an attribute", "shop", types("a"), happened("a", "x", func(e *event.Event) { e.SetExtension("shop", "s-1") }), "s-1", ""},
		{"no attribute", "shop", types("a"), happened("a", "x", nil), "", "at shop"},
		{"a field", "data.bot.id", types("a"), happened("a", "x", data("application/json", `{"bot":{"id":"b-7"}}`)), "b-7", ""},
		{"a large number", "data.id", types("a"), happened("a", "x", data("application/json", `{"id":12345678901234567890}`)), "12345678901234567890", ""},
		{"an element", "data.0.id", types("a"), happened("a", "x", data("application/json", `[{"id":"first"}]`)), "first", ""},
		{"a field that is none", "data.bot", types("a"), happened("a", "x", data("application/json", `{"bot":{"id":"b"}}`)), "", "at data.bot"},
		{"no data", "data.bot", types("a"), happened("a", "x", nil), "", "at data.bot"},
		{"no JSON", "data.bot", types("a"), happened("a", "x", data("text/plain", "hello")), "", "at data.bot"},
		{"a null", "data.bot", types("a"), happened("a", "x", data("application/json", `{"bot":null}`)), "", "at data.bot"},
		{"a line", "data.bot", types("a"), happened("a", "x", data("application/json", `{"bot":"a\nb"}`)), "", "control character"},
		{"a novel", "data.bot", types("a"), happened("a", "x", data("application/json", `{"bot":"`+strings.Repeat("x", 257)+`"}`)), "", "257 bytes"},
		{"none", "none", types("a"), happened("a", "x", nil), "intent", ""},
		{"a tick", "shop", tick, happened(tidemill.TypeScheduleTick, "bot-3", of("nightly")), "bot-3", ""},
		{"a tick for nobody", "none", tick, happened(tidemill.TypeScheduleTick, "", of("nightly")), "intent", ""},
	} {
		d := &desk{}
		f := d.train(recipe(c.place, c.when))
		err := f(t.Context(), c.e)
		switch {
		case c.fails == "" && (err != nil || len(d.asked) != 1 || d.asked[0].Key != c.key || d.asked[0].Recipe != "intent"):
			t.Errorf("%s: %v, asked %+v", c.name, err, d.asked)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || len(d.asked) > 0):
			t.Errorf("%s: %v, want %q", c.name, err, c.fails)
		case c.fails != "" && status(t, f, c.e) != http.StatusUnprocessableEntity:
			t.Errorf("%s: it comes again", c.name)
		}
	}
}

func TestTheMostImpatientEntryCounts(t *testing.T) {
	t.Parallel()
	patient := config.RecipeWhen{When: config.When{Types: []string{"new-data"}}, Debounce: time.Minute, MaxWait: time.Hour, Priority: 1}
	urgent := config.RecipeWhen{When: config.When{Types: []string{"new-data"}, Where: "urgent"}, Debounce: time.Second, MaxWait: 10 * time.Second, Priority: 7}
	all := config.RecipeWhen{When: config.When{Stream: "orders"}, Debounce: 2 * time.Minute}
	d := &desk{}
	f := d.train(recipe("subject", patient, urgent, all))
	for _, e := range []*broker.View{
		happened("new-data", "b", nil),
		happened("new-data", "b", func(e *event.Event) { e.SetExtension("urgent", true) }),
		happened("order-paid", "b", nil),
	} {
		if err := f(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []config.RecipeWhen{patient, urgent, all} {
		if a := d.asked[i]; a.Debounce != want.Debounce || a.MaxWait != want.MaxWait || a.Priority != want.Priority || a.Delay != 0 {
			t.Errorf("event %d asks for %+v, want %+v", i, a, want)
		}
	}
}

func TestWhatARequestCarries(t *testing.T) {
	t.Parallel()
	d := &desk{}
	f := d.train(recipe("subject", types("a")))
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	plain := happened("a", "b", data("application/json", `{"n":1}`))
	chained := happened("a", "b", func(e *event.Event) {
		e.SetExtension(tidemill.AttrCorrelationID, "chain")
		e.SetExtension(tidemill.AttrTraceParent, trace)
		_ = e.SetData("text/plain", []byte(strings.Repeat("x", maxData+1)))
	})
	for _, e := range []*broker.View{plain, chained} {
		if err := f(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	a, b := d.asked[0], d.asked[1]
	if a.Cause != (tidemill.Cause{Source: "/crm", ID: "1"}) || a.Correlation != "1" || a.Trace != "" || a.By != "" {
		t.Errorf("a plain event asks with %+v", a)
	}
	if b.Correlation != "chain" || b.Trace != trace {
		t.Errorf("a chained event asks with %+v", b)
	}
	var first, second map[string]any
	if err := errors.Join(json.Unmarshal(a.Events[0], &first), json.Unmarshal(b.Events[0], &second)); err != nil {
		t.Fatal(err)
	}
	if len(a.Events) != 1 || fmt.Sprint(first["data"]) != "map[n:1]" || first["type"] != "a" || first[attrLeftOut] != nil {
		t.Errorf("the event is kept as %s", a.Events)
	}
	if second["data"] != nil || second[attrLeftOut] != fmt.Sprint(maxData+1) || second["correlationid"] != "chain" {
		t.Errorf("an event with much data is kept as %s", b.Events)
	}
}

func TestWhoComesAgain(t *testing.T) {
	t.Parallel()
	away := errors.New("kafka is away")
	for _, c := range []struct {
		name string
		fail error
		r    config.Recipe
		want int
	}{
		{"nothing is wrong", nil, recipe("subject", types("a")), 204},
		{"the log is away", away, recipe("subject", types("a")), 500},
		{"the ledger is behind", fmt.Errorf("ask: %w", scheduler.ErrCatchingUp), recipe("subject", types("a")), 503},
		{"the fact is too large", fmt.Errorf("put: %w", broker.ErrTooLarge), recipe("subject", types("a")), 422},
		{"nobody wants it", nil, recipe("subject", types("b")), 500},
		{"the recipe has gone", nil, config.Recipe{Name: "other"}, 500},
	} {
		d := &desk{fail: func(int, scheduler.Request) error { return c.fail }}
		if got := status(t, d.train(c.r), happened("a", "b", nil)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAChangedConfigCounts(t *testing.T) {
	t.Parallel()
	d := &desk{}
	now := &config.Config{Recipes: []config.Recipe{recipe("subject", types("a"))}}
	f := New(Options{Config: func() *config.Config { return now }, Asker: d, Keys: d.Keys}, "intent")
	if err := f(t.Context(), happened("b", "k", nil)); !errors.Is(err, errStale) {
		t.Errorf("an event without a rule: %v", err)
	}
	now = &config.Config{Recipes: []config.Recipe{recipe("subject", types("b"))}}
	if err := f(t.Context(), happened("b", "k", nil)); err != nil || len(d.asked) != 1 {
		t.Errorf("after the change: %v, asked %+v", err, d.asked)
	}
}

func everybody(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("bot-%05d", i))
	}
	return keys
}

func eachNight(spread time.Duration) config.Recipe {
	return recipe("subject", config.RecipeWhen{When: config.When{Types: []string{tidemill.TypeScheduleTick}, Where: "schedule = 'nightly'"},
		Schedule: "nightly", Each: true, Spread: spread, Priority: 3})
}

func tick() *broker.View {
	return happened(tidemill.TypeScheduleTick, "", func(e *event.Event) { e.SetExtension("schedule", "nightly") })
}

func TestATickAsksForEveryKeyOnce(t *testing.T) {
	t.Parallel()
	d := &desk{keys: everybody(20_000)}
	f := d.train(eachNight(2 * time.Hour))
	if err := f(t.Context(), tick()); err != nil {
		t.Fatal(err)
	}
	var keys []string
	quarters := make([]int, 4)
	for _, r := range d.asked {
		keys = append(keys, r.Key)
		if r.Delay < 0 || r.Delay >= 2*time.Hour || r.Cause.ID != "1" || r.Priority != 3 {
			t.Fatalf("asked %+v", r)
		}
		quarters[r.Delay/(30*time.Minute)]++
	}
	slices.Sort(keys)
	if !slices.Equal(keys, d.keys) {
		t.Errorf("%d keys were asked for", len(keys))
	}
	for _, n := range quarters {
		if n < 4_700 || n > 5_300 { // 4 sigma are 245
			t.Errorf("the spread is uneven: %v", quarters)
		}
	}
	places := map[string]time.Duration{}
	for _, r := range d.asked {
		places[r.Key] = r.Delay
	}
	d.asked = nil
	if err := f(t.Context(), tick()); err != nil {
		t.Fatal(err)
	}
	for _, r := range d.asked {
		if places[r.Key] != r.Delay {
			t.Fatalf("%s has another place the next night", r.Key)
		}
	}
}

func TestATickForOneKeyIsForThatKey(t *testing.T) {
	t.Parallel()
	d := &desk{keys: everybody(10)}
	one := tick()
	one.Subject = "bot-3"
	if err := d.train(eachNight(time.Hour))(t.Context(), one); err != nil || len(d.asked) != 1 || d.asked[0].Key != "bot-3" {
		t.Errorf("%v, asked %+v", err, d.asked)
	}
}

func TestATickThatIsCutShortComesAgain(t *testing.T) {
	t.Parallel()
	away := errors.New("kafka is away")
	d := &desk{keys: everybody(10_000), fail: func(n int, _ scheduler.Request) error {
		if n > 100 {
			return away
		}
		return nil
	}}
	f := d.train(eachNight(0))
	if err := f(t.Context(), tick()); !errors.Is(err, away) || !strings.Contains(err.Error(), "for key bot-") {
		t.Errorf("it says %v", err)
	}
	if n := len(d.asked); n > 100+2*eachAtOnce {
		t.Errorf("after the first failure it went on to %d", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d = &desk{keys: everybody(10_000)}
	d.fail = func(n int, _ scheduler.Request) error {
		if n == 50 {
			cancel()
		}
		return nil
	}
	if err := d.train(eachNight(0))(ctx, tick()); !errors.Is(err, context.Canceled) {
		t.Errorf("who is not waited for any more says %v", err)
	}
	d = &desk{keys: everybody(3), lists: away}
	if err := d.train(eachNight(0))(t.Context(), tick()); !errors.Is(err, away) || len(d.asked) > 0 {
		t.Errorf("of keys that cannot be listed: %v, asked %d", err, len(d.asked))
	}
}

// A key that the recipe can have no longer does not keep the others from their runs. It is named in the end.
func TestATickWithAnUnfitKey(t *testing.T) {
	t.Parallel()
	d := &desk{keys: append(everybody(10), "Ana Smith", "Bob Smith")}
	r := eachNight(0)
	r.Makes.Model = "intent/{key}"
	err := d.train(r)(t.Context(), tick())
	if len(d.asked) != 10 || err == nil || !strings.Contains(err.Error(), `for 2 of 12 keys, which the recipe can have no longer: "Ana Smith" can be no key`) {
		t.Errorf("asked for %d keys: %v", len(d.asked), err)
	}
	if got := status(t, d.train(r), tick()); got != http.StatusUnprocessableEntity {
		t.Errorf("the answer is %d", got)
	}
}

// A tick for more keys than one try can take continues where the try before has stopped, although
// keys come and go meanwhile. A finished tick leaves nothing behind.
func TestATickForManyKeysGoesOn(t *testing.T) {
	t.Parallel()
	const keys, aTry = 30_000, 7_000
	d := &desk{keys: everybody(keys)}
	slices.Reverse(d.keys) // Redis lists them in no order
	tries := 0
	for done := false; !done; tries++ {
		ctx, cancel := context.WithCancel(t.Context())
		until := len(d.asked) + aTry
		d.fail = func(n int, _ scheduler.Request) error {
			if n == until {
				cancel()
			}
			return nil
		}
		err := d.train(eachNight(0))(ctx, tick()) // another process each time
		if cancel(); err != nil && !errors.Is(err, context.Canceled) || tries > 10 {
			t.Fatalf("try %d: %v", tries, err)
		}
		if done = err == nil; tries == 1 {
			d.keys = append(d.keys[1:], "zoe") // the last key goes, and another comes
		}
	}
	times := map[string]int{}
	for _, r := range d.asked {
		times[r.Key]++
		if !r.Once {
			t.Fatalf("%s was asked for again without a look whether its run is known", r.Key)
		}
	}
	if len(times) != keys || times["zoe"] == 0 || len(d.asked) > keys+tries*(eachPart+eachAtOnce) {
		t.Errorf("in %d tries, %d keys were asked for by %d requests", tries, len(times), len(d.asked))
	}
	if len(d.notes) > 0 || d.saves == 0 {
		t.Errorf("left are %d notes of %d", len(d.notes), d.saves)
	}
}
