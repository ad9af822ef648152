package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/evaluate"
)

const (
	predictionsFile = evaluate.FileName
	reportFile      = "report.json"

	mostPredictions = 256 << 20 // bytes that are counted
	mostReport      = 64 << 20
)

// measure counts a run's predictions and lays them beside what its trainer says.
func (r *Registrar) measure(ctx context.Context, w *work) (*tidemill.Report, error) {
	p, fault, err := r.predictions(ctx, w.result.Artifact)
	if err != nil {
		return nil, err
	}
	champion := 0
	if w.Champion != nil {
		champion = w.Champion.Version
	}
	report := evaluate.Report(p, fault, w.result.Metrics, champion)
	return &report, nil
}

// predictions are counted as they are read. The fault is theirs; the error is of
// what they lie in, and another try may do without.
func (r *Registrar) predictions(ctx context.Context, artifact string) (p *evaluate.Predictions, fault, err error) {
	f, err := r.find(ctx, artifact, predictionsFile)
	switch {
	case err != nil || f == nil:
		return nil, nil, err
	case f.Size > mostPredictions:
		return nil, fmt.Errorf("%s has %d bytes, and at most %d are counted: predict fewer examples", predictionsFile, f.Size, mostPredictions), nil
	}
	from, err := r.o.Store.OpenFile(ctx, *f)
	if err != nil {
		return nil, nil, gone(artifact, err)
	}
	defer from.Close()
	heard := &hearing{Reader: from}
	counted, fault := evaluate.Read(heard)
	if heard.err != nil {
		return nil, nil, gone(artifact, heard.err)
	}
	return &counted, fault, nil
}

// hearing tells an error of what is read from one of whoever reads it.
type hearing struct {
	io.Reader
	err error
}

// Read is the reader's.
func (h *hearing) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	return n, err
}

// find looks a file up in a tree: nil if the tree has none of its name.
func (r *Registrar) find(ctx context.Context, tree, path string) (found *api.File, err error) {
	err = r.o.Store.Walk(ctx, tree, path, "", func(f api.File) error {
		if f.Path == path {
			found = &f
		}
		return nil
	})
	if err != nil {
		return nil, gone(tree, err)
	}
	return found, nil
}

// gone says of what is not in the store any more that nobody need look again.
func gone(tree string, err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return hopelessf("tree %s, which the run made, cannot be read from the store any more: %w; ask for the run again", tree, err)
	}
	return fmt.Errorf("read tree %s, which the run made: %w", tree, err)
}

// keep puts a report into the store, as a tree of its own.
func (r *Registrar) keep(ctx context.Context, report *tidemill.Report) (tree string, err error) {
	text, err := json.Marshal(report)
	if err != nil {
		return "", hopelessf("write the report: %w", err)
	}
	sum := sha256.Sum256(text)
	f := api.File{Path: reportFile, Digest: hex.EncodeToString(sum[:]), Size: int64(len(text))}
	if err = r.o.Store.PutObject(ctx, f.Digest, f.Size, bytes.NewReader(text)); err != nil {
		return "", fmt.Errorf("keep the report: %w", err)
	}
	ref, err := r.o.Store.Tree(ctx, []api.File{f})
	if err != nil {
		return "", fmt.Errorf("keep the report: %w", err)
	}
	return ref.Tree, nil
}

// Report is what was measured of a version.
func (r *Registrar) Report(ctx context.Context, v *tidemill.Version) (tidemill.Report, error) {
	report, err := r.readReport(ctx, v.Report)
	if err != nil {
		return report, fmt.Errorf("read the report of %s: %w", tidemill.VersionName(v.Model, v.Number), err)
	}
	return report, nil
}

func (r *Registrar) readReport(ctx context.Context, tree string) (report tidemill.Report, err error) {
	f, err := r.o.Store.File(ctx, tree, reportFile)
	if err != nil {
		return report, err
	}
	from, err := r.o.Store.OpenFile(ctx, f)
	if err != nil {
		return report, err
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, mostReport))
	if err != nil {
		return report, err
	}
	return report, json.Unmarshal(text, &report)
}

// reportOf is the report that a version was registered with. Where the store has
// it no more, what the version is registered with has to do: the first of its
// metrics.
func (r *Registrar) reportOf(ctx context.Context, model string, number int) (*tidemill.Report, error) {
	v, err := r.record(ctx, model, number)
	switch {
	case err != nil:
		return nil, err
	case v == nil:
		return nil, fmt.Errorf("look up %s: %w", tidemill.VersionName(model, number), ErrUnknown)
	}
	report, err := r.Report(ctx, &v.Version)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return &tidemill.Report{Metrics: v.Metrics, Notes: []string{"its report cannot be read any more: " + err.Error()}}, nil
	}
	return &report, err
}

// chosen are the metrics that a version is registered with: those that its gate
// names, then those that lie least deep.
func chosen(all map[string]float64, clauses []string) map[string]float64 {
	if len(all) <= tidemill.MaxMetrics {
		return all
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	gate := strings.Join(clauses, "\n")
	unnamed := func(name string) int {
		if strings.Contains(gate, "metrics."+name) {
			return 0
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(unnamed(a), unnamed(b)), cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), strings.Compare(a, b))
	})
	few := make(map[string]float64, tidemill.MaxMetrics)
	for _, name := range names[:tidemill.MaxMetrics] {
		few[name] = all[name]
	}
	return few
}

// announce tells of what the log has accepted, up to the last that is wanted: who
// hears of a model shall hear of its changes in their order. What others have
// announced meanwhile is left out; what they announce at the same time stands on
// the log twice, under one id. ours is the proposal that we have made ourselves,
// if any, and need not read.
func (r *Registrar) announce(ctx context.Context, m *fold.Model, ours said, wanted func(fold.Owed) bool) (*fold.Model, error) {
	todo := slices.Clone(m.Owed)
	for len(todo) > 0 && !wanted(todo[len(todo)-1]) {
		todo = todo[:len(todo)-1]
	}
	for _, o := range todo {
		if !slices.ContainsFunc(m.Owed, func(x fold.Owed) bool { return x.Proposal == o.Proposal && x.Type == o.Type }) {
			continue
		}
		f, err := r.announcement(ctx, m, o, ours)
		if err != nil {
			return nil, fmt.Errorf("announce what became of proposal %s for model %s: %w", o.Proposal, m.Name, err)
		}
		r.step(toAnnounce)
		if _, m, err = r.put(ctx, f); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// announcement is the fact that tells of an accepted proposal. It comes from
// where the proposal came from, whoever writes it: an event is known by its
// source and its id.
func (r *Registrar) announcement(ctx context.Context, m *fold.Model, o fold.Owed, ours said) (*fact, error) {
	v := &ours.view
	if ours.at != o.At || v.ID != o.Proposal {
		found, err := r.factAt(ctx, o.At)
		if err != nil {
			return nil, err
		}
		v = found
	}
	var p tidemill.PromotionProposed
	if err := json.Unmarshal(v.Data, &p); err != nil {
		return nil, hopelessf("read the proposal: %w", err)
	}
	j := p.Judgement
	if p.Action == tidemill.ActionJudge { // the log may have had a word to add
		kept, err := r.record(ctx, m.Name, o.Version)
		if err != nil {
			return nil, err
		}
		if kept != nil && kept.Judgement != nil {
			j = kept.Judgement
		}
	}
	f := &fact{typ: o.Type, id: tidemill.ID("announced", o.Proposal, o.Type), source: v.Source, model: m.Name, key: v.Subject,
		version: o.Version, by: o.By, chain: after(v),
		data: tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version, Champion: o.Champion, Artifact: p.Artifact,
			Before: o.Before, Turn: o.Turn, Reason: p.Reason, Judgement: j, Origin: p.Origin}}
	f.recipe, _ = v.Attribute(tidemill.AttrRecipe)
	f.run, _ = v.Attribute(tidemill.AttrRun)
	return f, nil
}

// factAt reads a fact that the log has.
func (r *Registrar) factAt(ctx context.Context, at tidemill.Mark) (found *broker.View, err error) {
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: at.Partition, Offset: at.Offset}
	var torn error
	_, err = r.o.Broker.Read(ctx, from, 1, func(e *broker.Incoming) bool {
		if e.Offset == at.Offset {
			v := e.View.Clone()
			found, torn = &v, e.Err
		}
		return e.Offset < at.Offset
	})
	switch {
	case err != nil || torn != nil:
		return nil, cmp.Or(err, torn)
	case found == nil:
		return nil, fmt.Errorf("stream %s, partition %d has nothing at offset %d any more", from.Stream, from.Partition, from.Offset)
	}
	return found, nil
}

// The components that facts of models come from.
const (
	byPromote = "promote" // what follows from a run's end
	byGateway = "gateway" // a person's wish
	byForget  = "forget"  // the end of a key
)

// fact is what is to be said of a model.
type fact struct {
	typ, id, source string
	model, key      string
	version         int // 0 is none
	recipe, run, by string
	chain           chain
	data            any
}

// chain is what a fact inherits from the one before it.
type chain struct {
	cause              tidemill.Cause
	correlation, trace string
}

// after is the chain of what follows from an event.
func after(v *broker.View) chain {
	c := chain{cause: tidemill.Cause{Source: v.Source, ID: v.ID}}
	c.correlation, _ = v.Attribute(tidemill.AttrCorrelationID)
	c.trace, _ = v.Attribute(tidemill.AttrTraceParent)
	if c.correlation == "" {
		c.correlation = v.ID
	}
	return c
}

// view is the fact as an event.
func (f *fact) view(at time.Time) (broker.View, error) {
	data, err := json.Marshal(f.data)
	if err != nil {
		return broker.View{}, hopelessf("write %s of model %s: %w", f.typ, f.model, err)
	}
	v := broker.View{ID: f.id, Source: f.source, Type: f.typ, Subject: f.key, Time: at.UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(f.typ), DataContentType: "application/json", Data: data, Key: []byte(tidemill.ModelKey(f.model))}
	version := ""
	if f.version > 0 {
		version = strconv.Itoa(f.version)
	}
	for _, x := range []broker.Attribute{
		{Name: tidemill.AttrModel, Value: f.model}, {Name: tidemill.AttrModelVersion, Value: version},
		{Name: tidemill.AttrRecipe, Value: f.recipe}, {Name: tidemill.AttrRun, Value: f.run},
		{Name: tidemill.AttrAuthID, Value: f.by},
		{Name: tidemill.AttrCausationID, Value: f.chain.cause.ID}, {Name: tidemill.AttrCausationSource, Value: f.chain.cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: f.chain.correlation}, {Name: tidemill.AttrTraceParent, Value: f.chain.trace},
	} {
		if x.Value != "" {
			v.Extensions = append(v.Extensions, x)
		}
	}
	return v, nil
}

// said is a fact of ours that is on the log, and where.
type said struct {
	view broker.View
	at   tidemill.Mark
}

// put puts a fact on the log and returns it with what the log makes of the model.
func (r *Registrar) put(ctx context.Context, f *fact) (said, *fold.Model, error) {
	v, err := f.view(r.now())
	if err != nil {
		return said{}, nil, err
	}
	where, m, err := r.o.Ledger.AppendModel(ctx, &v)
	if err != nil {
		return said{}, nil, fmt.Errorf("put %s of model %s on the log: %w", f.typ, f.model, err)
	}
	return said{v, tidemill.Mark{Partition: where.Partition, Offset: where.Offset}}, m, nil
}
