package watcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/drift"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/keys"
)

// Options name a scorer and what its watcher needs.
type Options struct {
	Broker  *broker.Broker
	Publish func(context.Context, *broker.View) error // writes a fact
	Store   *store.Store                              // keeps the state
	Names   tidemill.Names
	Scorer  config.Scorer
	Logger  *slog.Logger
	// Predictions returns the figures of a version's predictions, which are the reference; nil if it has none. It is
	// only called if the config asks for it.
	Predictions func(ctx context.Context, model string, version int) (*tidemill.Figures, error)
	// OpenAlarm returns the number of the alarm of a scorer's figure that the model's facts still have; 0 if there is none.
	OpenAlarm func(ctx context.Context, model string, d *tidemill.ModelDrifted) (alarm int, err error)
	Lag       telemetry.Lag
}

const (
	saveEvery   = 5 * time.Minute  // time between two states in the store, which a successor reads again from the log
	saveWithin  = 30 * time.Second // limit of the last save
	reportEvery = time.Second
	noteEvery   = time.Minute
	maxBytes    = 16 << 20 // of events that are read ahead
)

// Settings returns the part of a scorer's config that a watcher depends on.
func Settings(s *config.Scorer) any {
	return []any{s.From, s.To, s.Types, s.Key, s.Model, *s.Drift, s.Labels != nil}
}

// Run watches until the context ends. It continues where the last saved state ends. One process at a time watches a
// scorer. If two do for a while, both publish the same facts under the same ids.
func Run(ctx context.Context, o Options) (err error) {
	w := newWatcher(o)
	if err := w.load(ctx); err != nil {
		return fmt.Errorf("watch scorer %s for drift: %w", o.Scorer.Name, err)
	}
	c, err := o.Broker.Consumer(ctx, broker.ConsumerOptions{Streams: w.streams(), Start: broker.Earliest(), MaxBytes: maxBytes, Assigned: w.assigned})
	if err != nil {
		return fmt.Errorf("watch scorer %s for drift: %w", o.Scorer.Name, err)
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	unlist, err := o.Lag.Report(c.Positions)
	if err != nil {
		return err
	}
	defer unlist()
	if err = w.watchUntil(ctx, c); ctx.Err() == nil {
		return fmt.Errorf("watch scorer %s for drift: %w", o.Scorer.Name, err)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
	defer cancel()
	if err := w.save(last); err != nil {
		return fmt.Errorf("save the state of the drift of scorer %s: %w", o.Scorer.Name, err)
	}
	return context.Cause(ctx)
}

// watcher holds the state of all models of a scorer.
type watcher struct {
	Options
	source string
	key    keys.Place
	inputs []keys.Place
	at     []string // names of the figures

	state
	models  map[string]*drift.Model
	ofKey   map[string]named     // models of the keys of inputs
	retired map[string]time.Time // models whose keys were removed
	watch   *drift.Watch
	silent  int     // number of models without an answer
	rest    float64 // reports that are allowed now
	refill  time.Time
	noted   time.Time // time of the last log line about models that wait
	saved   time.Time
	now     time.Time // time at which the present event reached the log
}

// named is a model with its name.
type named struct {
	name  string
	model *drift.Model
}

// state is the part of the state that is saved as JSON, before the models.
type state struct {
	Config  string                      `json:"config"` // config of the figures; a state of another config cannot be continued
	Places  map[string]map[int32]int64  `json:"places"` // stream → partition → next offset
	Budget  drift.Budget                `json:"budget"`
	Words   []map[int][]string          `json:"words"`             // figure → bin → some of its texts
	Waiting map[string][]waitingForTurn `json:"waiting,omitempty"` // model → figures that have drifted and are not reported yet
	Models  int                         `json:"models"`
	Begun   time.Time                   `json:"begun,omitzero"` // when the watch began without a state; zero if a version before this field began it
}

// waitingForTurn is a report that waits because more models have drifted than may be reported.
type waitingForTurn struct {
	At       time.Time `json:"at"`
	Returned bool      `json:"returned,omitempty"` // whether the figure has returned before the turn of its report
	tidemill.ModelDrifted
}

func newWatcher(o Options) *watcher {
	d := o.Scorer.Drift
	w := &watcher{Options: o, source: o.Names.Source("scorer/" + o.Scorer.Name), key: keys.NewPlace(o.Scorer.Key),
		at:     []string{tidemill.FigureLabels, tidemill.FigureScores, tidemill.FigureAccuracy, tidemill.FigureMissing},
		models: map[string]*drift.Model{}, rest: 1, ofKey: map[string]named{}, retired: map[string]time.Time{}, watch: drift.NewWatch(d.Reference, d.FalseAlarms)}
	for _, in := range d.Inputs {
		w.inputs = append(w.inputs, keys.NewPlace(in.Place))
		w.at = append(w.at, tidemill.FigureInput+strings.TrimPrefix(in.Name, config.KeyData))
	}
	w.state = state{Config: fmt.Sprint(d.Reference, d.Inputs, d.Predictions), Places: map[string]map[int32]int64{}, Words: make([]map[int][]string, len(w.at)),
		Waiting: map[string][]waitingForTurn{}}
	for i := range w.Words {
		w.Words[i] = map[int][]string{}
	}
	return w
}

// streams returns the streams that are read: answers, facts, and those that the config needs.
func (w *watcher) streams() []string {
	all := []string{w.Scorer.To, tidemill.StreamFacts}
	if w.Scorer.Labels != nil {
		all = append(all, tidemill.StreamOutcomes)
	}
	if len(w.inputs) > 0 {
		all = append(all, w.Scorer.From)
	}
	return all
}

// assigned continues each partition after the last event of the saved state.
func (w *watcher) assigned(_ context.Context, at []broker.Position) ([]broker.Position, error) {
	for i := range at {
		if next, ok := w.Places[at[i].Stream][at[i].Partition]; ok && next > at[i].Offset {
			at[i].Offset = next
		} else if ok && next < at[i].Offset {
			w.Logger.Warn("drift: events have left the stream before they were watched; figures may miss them",
				"scorer", w.Scorer.Name, "stream", at[i].Stream, "partition", at[i].Partition, "from", next, "to", at[i].Offset)
		}
	}
	return at, nil
}

func (w *watcher) watchUntil(ctx context.Context, c *broker.Consumer) error {
	w.saved, w.refill = time.Now(), time.Now()
	for {
		wait, done := context.WithTimeout(ctx, reportEvery)
		d, err := c.Poll(wait)
		done()
		switch {
		case err == nil:
			if err := w.take(ctx, d); err != nil {
				return err
			}
			places := w.Places[d.Stream]
			if places == nil {
				places = map[int32]int64{}
				w.Places[d.Stream] = places
			}
			places[d.Partition] = d.Next()
			d.Done()
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		if err := w.tellTurns(ctx); err != nil {
			return err
		}
		if time.Since(w.saved) >= saveEvery {
			if err := w.save(ctx); err != nil {
				return fmt.Errorf("save the state: %w", err)
			}
			w.saved = time.Now()
		}
	}
}

// take counts the events of a delivery.
func (w *watcher) take(ctx context.Context, d *broker.Delivery) error {
	for i := range d.Events {
		e := &d.Events[i]
		if errors.Is(e.Err, broker.ErrCut) {
			w.saved = time.Time{} // the places in the old stream must not be continued
		}
		if e.Err != nil {
			continue
		}
		w.now = e.Time
		place := uint64(d.Partition)<<offsetBits | uint64(e.Offset)&(1<<offsetBits-1)
		// A stream may have several roles: a scorer's input may be the output of another one.
		if d.Stream == w.Scorer.To && e.Type == tidemill.TypeScored && e.Source == w.source {
			if err := w.answered(ctx, &e.View, place); err != nil {
				return err
			}
		}
		switch {
		case d.Stream == tidemill.StreamOutcomes:
			w.learned(&e.View, place)
		case d.Stream == tidemill.StreamFacts:
			w.retire(&e.View)
		case d.Stream == w.Scorer.From && len(w.inputs) > 0 && w.scores(e.Type):
			w.received(&e.View, place)
		}
	}
	return nil
}

// offsetBits is the number of bits of Kafka's offset in a place; the partition has the others.
const offsetBits = 44

// scores reports whether the scorer scores events of a type.
func (w *watcher) scores(typ string) bool {
	if len(w.Scorer.Types) == 0 {
		return !tidemill.ReservedType(typ)
	}
	return slices.Contains(w.Scorer.Types, typ)
}

var labelPath, valuePath, truthPath = []string{"label"}, []string{"values", "0"}, []string{"truth"}

// labelAndScore reads the data of an answer as our scorers write it: label and score come first, and the scores of all
// labels need not be read. A model that is not a classifier has values, whose first one counts as the score.
func labelAndScore(data []byte) (label, score string) {
	const labelled, scored = `{"label":`, `,"score":`
	if !bytes.HasPrefix(data, []byte(labelled)) || len(data) == len(labelled) || data[len(labelled)] != '"' {
		return "", at(data, valuePath)
	}
	end := jsonscan.ReadString(data, len(labelled)).End
	if end < 0 {
		return "", ""
	}
	if bytes.HasPrefix(data[end:], []byte(scored)) {
		if number := end + len(scored); number < len(data) {
			if after := jsonscan.SkipNumber(data, number); after > number {
				score = jsonscan.AsText(data[number:after])
			}
		}
	}
	label, _, _ = jsonscan.Text(data, len(labelled), nil)
	return label, score
}

// answered counts an answer: its label and score, or its number.
func (w *watcher) answered(ctx context.Context, v *broker.View, place uint64) error {
	name, _ := v.Attribute(tidemill.AttrModel)
	number := version(v)
	m := w.model(name, true)
	if m == nil || number == 0 {
		return nil
	}
	before := m.Version
	if !m.Answered(number) {
		return nil
	}
	if m.Version != before && w.Scorer.Drift.Predictions {
		if err := w.prefill(ctx, strings.Clone(name), m); err != nil {
			return err
		}
	}
	if before == 0 {
		w.silent--
	} else if m.Version != before {
		delete(w.Waiting, name)
	}
	label, score := labelAndScore(v.Data)
	if label != "" {
		w.text(name, m, drift.Label, label, place)
	}
	if x, err := strconv.ParseFloat(score, 64); score != "" && err == nil {
		w.look(name, m, drift.Score, m.Figures[drift.Score].AddNumber(x, place, w.watch.Reference))
	}
	return nil
}

// prefill takes the predictions of a new champion's run as its reference.
func (w *watcher) prefill(ctx context.Context, name string, m *drift.Model) error {
	p, err := w.Predictions(ctx, name, int(m.Version))
	if err != nil {
		return fmt.Errorf("read the predictions of %s: %w", tidemill.VersionName(name, int(m.Version)), err)
	}
	if p == nil || !m.Prefill(p, w.watch.Reference) {
		w.Logger.Info("drift: the run has made too few predictions; the first answers are the reference", "scorer", w.Scorer.Name, "model", name, "version", m.Version)
	}
	return nil
}

// mostSilent bounds the models that have inputs and no answer yet. The observer reads both streams side by side, so an
// event may come before its answer, and its key may have no model at all.
const mostSilent = 10_000

// model returns the state of a model, and begins it. It is nil if the model is retired, or has no answer and too many
// others have none either.
func (w *watcher) model(name string, answered bool) *drift.Model {
	if m := w.models[name]; m != nil {
		return m
	}
	if at, gone := w.retired[name]; name == "" || !answered && w.silent >= mostSilent || gone && !w.now.After(at) {
		return nil
	}
	m := drift.NewModel(len(w.inputs))
	w.models[strings.Clone(name)] = m
	w.silent++
	return m
}

func version(v *broker.View) uint32 {
	text, _ := v.Attribute(tidemill.AttrModelVersion)
	n, _ := strconv.ParseUint(text, 10, 32)
	return uint32(n)
}

// learned counts whether an answer of the champion was right.
func (w *watcher) learned(v *broker.View, place uint64) {
	if scorer, _ := v.Attribute(tidemill.AttrScorer); scorer != w.Scorer.Name || v.Type != tidemill.TypeOutcome {
		return
	}
	name, _ := v.Attribute(tidemill.AttrModel)
	if m := w.models[name]; m != nil && version(v) == m.Version {
		w.look(name, m, drift.Accuracy, m.Figures[drift.Accuracy].AddYes(at(v.Data, labelPath) == at(v.Data, truthPath), place, w.watch.Reference))
	}
}

// received counts the watched inputs of an event.
func (w *watcher) received(v *broker.View, place uint64) {
	key := w.key.Of(v)
	of := w.ofKey[key]
	if of.model == nil {
		if of.name, _ = config.Expand(w.Scorer.Model, func(string) (string, bool) { return key, key != "" }); tidemill.CheckDataset(of.name) != nil {
			return
		}
		if of.model = w.model(of.name, false); of.model == nil {
			return
		}
		w.ofKey[strings.Clone(key)] = of
	}
	name, m := of.name, of.model
	missing := false
	for i := range w.inputs {
		text := w.inputs[i].Of(v)
		f := m.Input(i)
		if text == "" {
			missing = true
			continue
		}
		if f.Kind != drift.Shares {
			if x, err := strconv.ParseFloat(text, 64); err == nil {
				w.look(name, m, drift.Missing+1+i, f.AddNumber(x, place, w.watch.Reference))
				continue
			}
		}
		if f.Kind == drift.Numbers {
			missing = true // a text where numbers were
			continue
		}
		w.text(name, m, drift.Missing+1+i, text, place)
	}
	w.look(name, m, drift.Missing, m.Figures[drift.Missing].AddYes(missing, place, w.watch.Reference))
}

// text counts a text of a figure, and remembers some texts of each bin for reports.
func (w *watcher) text(name string, m *drift.Model, figure int, text string, place uint64) {
	const most, longest = 4, 60
	bin := drift.Bin(text)
	if words := w.Words[figure][bin]; len(words) < most && len(text) <= longest && !slices.Contains(words, text) {
		w.Words[figure][bin] = append(words, strings.Clone(text))
	}
	w.look(name, m, figure, m.Figures[figure].AddText(text, place, w.watch.Reference))
}

// retire drops the state of a model whose key was removed.
func (w *watcher) retire(v *broker.View) {
	if v.Type != tidemill.TypeModelRetired {
		return
	}
	name, _ := v.Attribute(tidemill.AttrModel)
	if _, ok := w.Scorer.KeyOf(name); ok {
		w.retired[strings.Clone(name)] = w.now
		if m := w.models[name]; m != nil && m.Version == 0 {
			w.silent--
		}
		delete(w.models, name)
		delete(w.Waiting, name)
		clear(w.ofKey)
	}
}
