package watcher

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/drift"
)

// look compares a figure whose block is full with its reference, and notes what is to be published.
func (w *watcher) look(model string, m *drift.Model, figure int, full bool) {
	if !full || m.Version == 0 {
		return
	}
	f := &m.Figures[figure]
	c, turn := w.watch.Look(f, w.now)
	switch turn {
	case drift.Drifts:
		d := tidemill.ModelDrifted{Scorer: w.Scorer.Name, Version: int(m.Version), Figure: w.at[figure], Value: w.value(figure, f, c.Bin),
			Before: rounded(c.Before), Now: rounded(c.Now), Values: c.Values, Since: w.place(figure, c.Since),
			Evidence: rounded(c.E), Needed: rounded(w.watch.Budget.Needed(w.watch.FalseAlarms)), Alarm: int(f.Alarms)}
		name := strings.Clone(model)
		waits := slices.DeleteFunc(w.Waiting[name], func(d waitingForTurn) bool { return d.Figure == w.at[figure] && d.Returned })
		w.Waiting[name] = append(waits, waitingForTurn{At: w.now, ModelDrifted: d})
	case drift.Returned:
		waits := w.Waiting[model]
		if i := slices.IndexFunc(waits, func(d waitingForTurn) bool { return d.Figure == w.at[figure] && d.Needed > 0 }); i >= 0 {
			waits[i].At, waits[i].Returned, waits[i].Needed, waits[i].Evidence = w.now, true, 0, 0
			return
		}
		name := strings.Clone(model)
		w.Waiting[name] = append(waits, waitingForTurn{At: w.now, ModelDrifted: tidemill.ModelDrifted{Scorer: w.Scorer.Name, Version: int(m.Version), Figure: w.at[figure], Alarm: int(f.Alarms)}})
	}
}

// rounded keeps four digits: more say nothing.
func rounded(x float64) float64 {
	text := strconv.FormatFloat(x, 'g', 4, 64)
	x, _ = strconv.ParseFloat(text, 64)
	return x
}

// value names a bin of a figure.
func (w *watcher) value(figure int, f *drift.Figure, bin int) string {
	switch {
	case f.Kind == drift.Numbers:
		return "< " + strconv.FormatFloat(float64(f.Edges[bin]), 'g', 4, 32)
	case figure == drift.Accuracy:
		return "right"
	case figure == drift.Missing:
		return "missing"
	}
	return strings.Join(w.Words[figure][bin], ", ")
}

// place returns the text of a place in the stream of a figure.
func (w *watcher) place(figure int, at uint64) string {
	stream := w.Scorer.To
	switch {
	case figure == drift.Accuracy:
		stream = tidemill.StreamOutcomes
	case figure >= drift.Missing:
		stream = w.Scorer.From
	}
	return stream + "/" + strconv.FormatUint(at>>offsetBits, 10) + "/" + strconv.FormatUint(at&(1<<offsetBits-1), 10)
}

// tellTurns publishes what waits. Only so many models an hour are reported, those with the strongest evidence first:
// if all the world changes on one day, the trainings that this asks for come at a chosen rate.
func (w *watcher) tellTurns(ctx context.Context) error {
	now := time.Now()
	perHour := w.Scorer.Drift.Reports
	w.rest = min(w.rest+now.Sub(w.refill).Hours()*perHour, max(1, perHour/60))
	w.refill = now
	for len(w.Waiting) > 0 {
		model, asks := w.mostUrgent()
		if asks && w.rest < 1 {
			if now.Sub(w.noted) > noteEvery {
				w.noted = now
				w.Logger.Info("drift: more models have drifted than may be reported in an hour; the others wait", "scorer", w.Scorer.Name, "events", len(w.Waiting))
			}
			return nil
		}
		told := false
		for _, d := range w.Waiting[model] {
			done, err := w.isDone(ctx, model, &d)
			if err == nil && !done {
				told, err = true, w.publish(ctx, model, d)
			}
			if err != nil {
				return err
			}
		}
		if delete(w.Waiting, model); asks && told {
			w.rest--
		}
	}
	return nil
}

// isDone reports whether nothing has to be reported: a figure that has drifted is reported already, or a figure that has
// returned before its turn never was. A watch that has lost its state begins again and counts alarms from 1, so a second
// report could have another id and ask for a second training. The figure continues the count.
func (w *watcher) isDone(ctx context.Context, model string, d *waitingForTurn) (bool, error) {
	if d.Needed == 0 && !d.Returned {
		return false, nil
	}
	alarm, err := w.OpenAlarm(ctx, model, &d.ModelDrifted)
	if err != nil {
		return false, fmt.Errorf("look up whether %s of %s is reported: %w", d.Figure, model, err)
	}
	if alarm < d.Alarm { // a new alarm, or one whose end is not folded yet
		return d.Returned, nil
	}
	if m := w.models[model]; m != nil {
		m.Figures[slices.Index(w.at, d.Figure)].Alarms = uint16(alarm)
	}
	d.Alarm = alarm
	return !d.Returned, nil
}

// mostUrgent returns the model with the strongest evidence, and whether it has drifted. Models of which only figures
// have returned come before all others, because such reports ask for no training.
func (w *watcher) mostUrgent() (model string, asks bool) {
	most := -1.0
	for name, waits := range w.Waiting {
		evidence := 0.0
		for i := range waits {
			evidence = max(evidence, waits[i].Evidence)
		}
		if evidence == 0 {
			return name, false
		}
		if evidence > most || evidence == most && name < model {
			model, most = name, evidence
		}
	}
	return model, true
}

// publish writes a fact. Its id derives from the number of the alarm, so that a process that reads the same answers
// again publishes the same fact. A watch that has lost its state counts alarms from 1 again. So alarms after its begin have
// the begin in their ids. Earlier ones were perhaps reported before the loss, and have the same ids as then.
func (w *watcher) publish(ctx context.Context, model string, d waitingForTurn) error {
	typ, content := tidemill.TypeModelDrifted, any(d.ModelDrifted)
	if d.Needed == 0 {
		typ, content = tidemill.TypeModelDriftEnded, tidemill.ModelDriftEnded{Scorer: d.Scorer, Version: d.Version, Figure: d.Figure, Alarm: d.Alarm}
	}
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	key, _ := w.Scorer.KeyOf(model)
	number := strconv.Itoa(d.Version)
	parts := []string{typ, d.Scorer, model, number, d.Figure, strconv.Itoa(d.Alarm)}
	if !w.Begun.IsZero() && d.At.After(w.Begun) {
		parts = append(parts, w.Begun.UTC().Format(time.RFC3339Nano))
	}
	id := tidemill.ID(parts...)
	v := broker.View{ID: id, Source: w.Names.Source("drift/" + d.Scorer), Type: typ, Subject: key, Time: d.At.UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(typ), DataContentType: "application/json", Data: data, Key: []byte(tidemill.ModelKey(model)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}, {Name: tidemill.AttrModelVersion, Value: number},
			{Name: tidemill.AttrScorer, Value: d.Scorer}, {Name: tidemill.AttrFigure, Value: d.Figure}, {Name: tidemill.AttrCorrelationID, Value: id}}}
	if err := w.Publish(ctx, &v); err != nil {
		return fmt.Errorf("report that %s of %s has changed: %w", d.Figure, model, err)
	}
	w.Logger.Info("drift: reported", "scorer", d.Scorer, "model", model, "version", d.Version, "figure", d.Figure, "type", typ, "evidence", math.Round(d.Evidence))
	return nil
}

func at(data []byte, path []string) string { return jsonscan.TextAt(data, path) }

func (w *watcher) note() string { return "drift-" + w.Scorer.Name }

// save writes the state into the store: a line of JSON, then each model's name and figures.
func (w *watcher) save(ctx context.Context) error {
	data, err := w.encode()
	if err != nil {
		return err
	}
	return w.Store.PutNote(ctx, w.note(), data)
}

func (w *watcher) encode() ([]byte, error) {
	w.Budget, w.Models = w.watch.Budget, len(w.models)
	head, err := json.Marshal(&w.state)
	if err != nil {
		return nil, err
	}
	data := append(head, '\n')
	var one []byte
	for _, name := range slices.Sorted(maps.Keys(w.models)) {
		if one, err = w.models[name].AppendBinary(one[:0]); err != nil {
			return nil, err
		}
		data = append(binary.AppendUvarint(data, uint64(len(name))), name...)
		data = append(binary.AppendUvarint(data, uint64(len(one))), one...)
	}
	return data, nil
}

// load continues with the saved state. If there is none, or one of other figures, or one that cannot be read, the watch
// begins with the first answers that the stream still has. Its begin is saved before it reports anything.
func (w *watcher) load(ctx context.Context) error {
	data, err := w.Store.Note(ctx, w.note())
	fresh := errors.Is(err, store.ErrNotFound)
	if err != nil && !fresh {
		return fmt.Errorf("read the saved state: %w", err)
	}
	if !fresh {
		if fresh, err = w.decode(data); err != nil {
			w.Logger.Warn("drift: the saved state cannot be read; the watch begins again", "scorer", w.Scorer.Name, "reason", err)
			w.models, w.silent, fresh = map[string]*drift.Model{}, 0, true
		}
	}
	if !fresh {
		return nil
	}
	w.Begun = time.Now()
	return w.save(ctx)
}

// decode continues with a state, unless its figures are others: then the watch is fresh.
func (w *watcher) decode(data []byte) (fresh bool, err error) {
	head, rest, _ := bytes.Cut(data, []byte("\n"))
	var s state
	if err := json.Unmarshal(head, &s); err != nil {
		return false, err
	}
	if s.Config != w.Config || len(s.Words) != len(w.Words) {
		w.Logger.Info("drift: the watched figures have changed; the watch begins again", "scorer", w.Scorer.Name)
		return true, nil
	}
	next := func() (part []byte) {
		n, size := binary.Uvarint(rest)
		if size <= 0 || uint64(len(rest)-size) < n {
			rest = nil
			return nil
		}
		part, rest = rest[size:size+int(n)], rest[size+int(n):]
		return part
	}
	for len(rest) > 0 {
		name, m := string(next()), new(drift.Model)
		if err := m.UnmarshalBinary(next()); err != nil {
			return false, fmt.Errorf("model %s: %w", name, err)
		}
		if len(m.Figures) != len(w.at) {
			return false, fmt.Errorf("model %s has %d figures, not %d", name, len(m.Figures), len(w.at))
		}
		w.models[strings.Clone(name)] = m
		if m.Version == 0 {
			w.silent++
		}
	}
	if len(w.models) != s.Models {
		return false, fmt.Errorf("it has %d models, not %d", len(w.models), s.Models)
	}
	if s.Waiting == nil {
		s.Waiting = map[string][]waitingForTurn{}
	}
	w.state, w.watch.Budget = s, s.Budget
	return false, nil
}
