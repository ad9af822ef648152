package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// ErrNoRecipe says that the current config has no such recipe.
var ErrNoRecipe = errors.New("the config has no such recipe")

// ErrCatchingUp says that the ledger does not know all facts yet, so the Foreman can decide
// nothing. A later try may succeed.
var ErrCatchingUp = ledger.ErrCatchingUp

// ErrKey says that a text is not a valid key.
var ErrKey = errors.New("can be no key")

// maxKey is the largest size of a key in bytes. Keys are part of record keys, paths and variables.
const maxKey = 256

// CheckKey returns an error if a key is invalid. Keys become parts of dataset names, variables
// and log lines.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("an empty text %w", ErrKey)
	case len(key) > maxKey:
		return fmt.Errorf("a text of %d bytes %w: it may have %d", len(key), ErrKey, maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("%q %w: it is not valid UTF-8", key, ErrKey)
	}
	for _, c := range key {
		if unicode.IsControl(c) {
			return fmt.Errorf("%q %w: it has a control character", key, ErrKey)
		}
	}
	return nil
}

// CheckKeyOf returns an error if a recipe can have no run for a key, because the names of its
// datasets and its model would not be valid. An input that depends on other fields is checked when
// its run is planned.
func CheckKeyOf(r *config.Recipe, key string) error {
	if err := CheckKey(key); err != nil || r.Key == config.KeyNone {
		return err
	}
	for _, n := range nameTemplates(r) {
		name, err := config.Expand(n.template, func(field string) (string, bool) {
			if field == "key" {
				return key, true
			}
			return "x", true
		})
		if err != nil || n.template == "" {
			continue
		}
		if err := tidemill.CheckDataset(name); err != nil {
			return fmt.Errorf("%q %w of recipe %s: %s would be %q, which %w", key, ErrKey, r.Name, n.what, name, err)
		}
	}
	return nil
}

// nameTemplate is the template of a name, and the purpose of the name for errors.
type nameTemplate struct{ what, template string }

func nameTemplates(r *config.Recipe) []nameTemplate {
	all := []nameTemplate{{"the model that it makes", r.Makes.Model}, {"the dataset that it makes", r.Makes.Dataset}}
	for _, from := range r.Inputs {
		all = append(all, nameTemplate{"the dataset of input " + from.Name, from.Dataset})
	}
	return all
}

// Request is a request for a run.
type Request struct {
	Recipe, Key string
	Cause       tidemill.Cause
	Events      []json.RawMessage
	Debounce    time.Duration
	MaxWait     time.Duration
	Delay       time.Duration
	Priority    int
	By          string // authid of a person
	Again       string // id of the run that is requested again
	Correlation string
	Trace       string // traceparent
	Once        bool   // whether to look first if the cause is known, because it is likely to be; then no fact is written
}

// Answer is the result of a request.
type Answer struct {
	Run    string
	Result fold.VerdictResult // accepted, merged (into the waiting run) or known
}

// Request appends a request to the log, and starts the work that is due then. Once the request is
// on the log, a failed start is not an error, because Watch tries again.
func (f *Foreman) Request(ctx context.Context, r Request) (Answer, error) {
	if err := f.checkRequest(r); err != nil {
		return Answer{}, fmt.Errorf("request a run of recipe %s: %w", r.Recipe, err)
	}
	if r.Once {
		m, err := f.ledger.Making(ctx, r.Recipe, r.Key)
		if err != nil {
			return Answer{}, fmt.Errorf("request a run of recipe %s for key %s: %w", r.Recipe, r.Key, err)
		}
		if run := m.RunOf(r.Cause); run != "" {
			return Answer{Run: run, Result: fold.Known}, nil
		}
	}
	at := f.now()
	where, m, err := f.appendFact(ctx, f.requestedFact(r), at)
	if err != nil {
		return Answer{}, err
	}
	a := answerOf(m, r, where.Offset)
	if a.Run == "" {
		return Answer{}, fmt.Errorf("request a run of recipe %s for key %s: the request is on the log at offset %d, and was not accepted", r.Recipe, r.Key, where.Offset)
	}
	f.metrics.requests.WithLabelValues(r.Recipe, string(a.Result)).Inc()
	f.inPassing(ctx, m)
	return a, nil
}

func (f *Foreman) checkRequest(r Request) error {
	recipe, ok := f.opt.Config().Recipe(r.Recipe)
	if !ok {
		return ErrNoRecipe
	}
	if r.Cause == (tidemill.Cause{}) {
		return errors.New("it names no cause")
	}
	return CheckKeyOf(&recipe, r.Key)
}

func (f *Foreman) requestedFact(r Request) fact {
	run := tidemill.RunID(r.Recipe, r.Key, r.Cause)
	a := fact{typ: tidemill.TypeRunRequested, id: tidemill.ID("requested", run, r.Cause.Source, r.Cause.ID),
		component: byTrain, recipe: r.Recipe, key: r.Key, run: run, cause: r.Cause,
		chain: chain{Correlation: r.Correlation, Trace: r.Trace},
		data: tidemill.RunRequested{Cause: r.Cause, Events: r.Events, Debounce: r.Debounce, MaxWait: r.MaxWait, Delay: r.Delay,
			Priority: r.Priority, Again: r.Again, Config: f.hash.get(f.opt.Config())}}
	if r.By != "" || r.Again != "" {
		a.component = byGateway
		a.attributes = []broker.Attribute{{Name: tidemill.AttrAuthID, Value: r.By}}
	}
	return a
}

// answerOf returns the result of the request at an offset, read from the making. An ended run has
// no offsets; then the request counts as a repeat, because a run rarely begins and ends before its
// request is read back.
func answerOf(m *fold.Making, r Request, offset int64) Answer {
	a := Answer{Run: m.RunOf(r.Cause), Result: fold.Known}
	run := m.Find(a.Run)
	switch {
	case run == nil || !slices.Contains(run.Asked, offset):
	case run.First == r.Cause:
		a.Result = fold.Accepted
	default:
		a.Result = fold.Merged
	}
	return a
}

const (
	mostAsking  = 100       // number of requests whose events are read again
	askingBytes = 512 << 10 // size of the events that go into one fact
)

// Again repeats the request for a run with the same events, because its output was discarded
// through no fault of the run. The cause names the new request. Again does nothing if the config no
// longer has the recipe, or if the ledger no longer knows the run, after ten newer ends.
func (f *Foreman) Again(ctx context.Context, id string, c tidemill.Cause, correlation, trace string) error {
	run, err := f.ledger.Run(ctx, id)
	if errors.Is(err, ledger.ErrUnknown) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask for run %s again: %w", id, err)
	}
	events, err := f.requestEvents(ctx, run)
	if err != nil {
		return fmt.Errorf("ask for run %s again: %w", id, err)
	}
	_, err = f.Request(ctx, Request{Recipe: run.Recipe, Key: run.Key, Cause: c, Events: events, Priority: run.Priority,
		Again: run.ID, Correlation: correlation, Trace: trace})
	if errors.Is(err, ErrNoRecipe) {
		f.log.Info("scheduler: the recipe is not in the config; the run is not requested again", "recipe", run.Recipe, "key", run.Key, "run", run.ID)
		return nil
	}
	return err
}

// requestEvents returns the events that asked for a run, oldest first. If there are too many
// events, it returns the newest.
func (f *Foreman) requestEvents(ctx context.Context, run *tidemill.Run) (events []json.RawMessage, err error) {
	bytes := 0
	for _, offset := range slices.Backward(run.Asked[max(0, len(run.Asked)-mostAsking):]) {
		d, err := f.requestAt(ctx, run.Partition, offset)
		if err != nil {
			return nil, err
		}
		for _, e := range slices.Backward(d.Events) {
			if bytes += len(e); bytes > askingBytes && len(events) > 0 {
				slices.Reverse(events)
				return events, nil
			}
			events = append(events, e)
		}
	}
	slices.Reverse(events)
	return events, nil
}

func (f *Foreman) requestAt(ctx context.Context, partition int32, offset int64) (d tidemill.RunRequested, err error) {
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: offset}
	found := fmt.Errorf("read stream %s, partition %d: there is nothing at offset %d", from.Stream, partition, offset)
	_, err = f.opt.Broker.Read(ctx, from, 1, func(e *broker.Incoming) bool {
		if e.Offset == offset {
			found = json.Unmarshal(e.Data, &d)
		}
		return e.Offset < offset
	})
	return d, errors.Join(err, found)
}

// Keys calls fn with the keys of a schedule that has `each: key`: the known keys of all recipes that
// the schedule starts, in any order, until fn returns false. A key of several recipes comes for each.
func (f *Foreman) Keys(ctx context.Context, schedule string, fn func(key string) bool) error {
	for _, r := range waitingFor(f.opt.Config(), schedule) {
		goesOn := true
		if err := f.ledger.Keys(ctx, r, func(key string) bool { goesOn = fn(key); return goesOn }); err != nil {
			return fmt.Errorf("list the keys of recipe %s for schedule %s: %w", r, schedule, err)
		}
		if !goesOn {
			return nil
		}
	}
	return nil
}

// waitingFor returns the recipes that a schedule starts.
func waitingFor(c *config.Config, schedule string) (names []string) {
	for _, r := range c.Recipes {
		if slices.ContainsFunc(r.When, func(w config.RecipeWhen) bool { return w.Schedule == schedule }) {
			names = append(names, r.Name)
		}
	}
	return names
}

// hashes caches the hash of the current config, because computing it costs more than the rest of
// a request.
type hashes struct {
	mu   sync.Mutex
	of   *config.Config
	hash string
}

func (h *hashes) get(c *config.Config) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of != c {
		h.of, h.hash = c, c.Hash()
	}
	return h.hash
}
