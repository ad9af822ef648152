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
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/evaluate"
)

const (
	predictionsFile = evaluate.FileName
	reportFile      = "report.json"

	mostPredictions = 256 << 20 // limit of counted bytes
	mostReport      = 64 << 20
)

// measure counts a run's predictions and combines them with the trainer's figures.
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
	report.Trial, err = r.try(ctx, w.Model, w.Key, w.result.Artifact, &report)
	return &report, err
}

// try tries the model of a version.
func (r *Registrar) try(ctx context.Context, model, key, artifact string, report *tidemill.Report) (*tidemill.ServingCheck, error) {
	if r.o.Try == nil {
		return nil, nil
	}
	ask := ServingRequest{Model: model, Key: key, Artifact: artifact}
	if report.Measured != nil {
		for _, c := range report.Measured.Classes {
			if c.Predicted > 0 && c.Label != "" { // a row without an answer has the empty label
				ask.Labels = append(ask.Labels, c.Label)
			}
		}
	}
	t, err := r.o.Try(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("try the model: %w", err)
	}
	return t, nil
}

// predictions counts the predictions while it reads them. fault is an error in the file. err is an
// error of the store, which another try may not have.
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
		return nil, nil, permanentIfCorrupt(artifact, err)
	}
	defer from.Close()
	heard := &errorRecorder{Reader: from}
	counted, fault := evaluate.Read(heard)
	if heard.err != nil {
		return nil, nil, permanentIfCorrupt(artifact, heard.err)
	}
	return &counted, fault, nil
}

// errorRecorder records an error of its reader, to tell it from an error in the content.
type errorRecorder struct {
	io.Reader
	err error
}

// Read is the method of io.Reader.
func (h *errorRecorder) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	return n, err
}

// find finds a file in a tree; nil if the tree has none with that path.
func (r *Registrar) find(ctx context.Context, tree, path string) (found *api.File, err error) {
	err = r.o.Store.Walk(ctx, tree, path, "", func(f api.File) error {
		if f.Path == path {
			found = &f
		}
		return nil
	})
	if err != nil {
		return nil, permanentIfCorrupt(tree, err)
	}
	return found, nil
}

// permanentIfCorrupt makes an error permanent if the tree is corrupt. A tree that is not in the store is
// waited for, as long as the event is delivered again: a copy of a store may lag.
func permanentIfCorrupt(tree string, err error) error {
	switch {
	case errors.Is(err, store.ErrCorrupt):
		return hopelessf("tree %s, which the run made, cannot be read from the store any more: %w; ask for the run again", tree, err)
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("tree %s, which the run made, is not in the store: %w; if a copy of the store lags, wait; if the tree was removed, ask for the run again", tree, err)
	}
	return fmt.Errorf("read tree %s, which the run made: %w", tree, err)
}

// storeReport stores a report as a separate tree.
func (r *Registrar) storeReport(ctx context.Context, report *tidemill.Report) (tree string, err error) {
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

// Report returns the report of a version.
func (r *Registrar) Report(ctx context.Context, v *tidemill.Version) (tidemill.Report, error) {
	report, err := ReadReport(ctx, r.o.Store, v.Report)
	if err != nil {
		return report, fmt.Errorf("read the report of %s: %w", tidemill.VersionName(v.Model, v.Number), err)
	}
	return report, nil
}

// ReadReport reads the report in a version's tree of its report.
func ReadReport(ctx context.Context, kept *store.Store, tree string) (report tidemill.Report, err error) {
	f, err := kept.File(ctx, tree, reportFile)
	if err != nil {
		return report, err
	}
	from, err := kept.OpenFile(ctx, f)
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

// reportOf returns the report with which a version was registered. If the store no longer has it,
// the report has only the metrics of the registration.
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

// chosenMetrics returns the metrics with which a version is registered: first the metrics that its
// gate names, then the metrics that are nested least.
func chosenMetrics(all map[string]float64, clauses []string) map[string]float64 {
	if len(all) <= tidemill.MaxMetrics {
		return all
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	named := gate.Metrics(clauses)
	unnamed := func(name string) int {
		if slices.Contains(named, name) {
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

// announce announces accepted proposals up to the last wanted one, because readers must see a
// model's changes in their order. It skips proposals that other processes have announced meanwhile.
// If another process announces the same proposal at the same time, the announcement is on the log
// twice, with one id. ours is the caller's proposal, if any, which need not be read.
func (r *Registrar) announce(ctx context.Context, m *fold.Model, ours publishedFact, wanted func(fold.Owed) bool) (*fold.Model, error) {
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
			return nil, fmt.Errorf("announce the result of proposal %s for model %s: %w", o.Proposal, m.Name, err)
		}
		r.step(toAnnounce)
		if _, m, err = r.publish(ctx, f); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// announcement returns the fact that announces an accepted proposal. Its source is the proposal's
// source, whichever process writes it, because an event is known by its source and id.
func (r *Registrar) announcement(ctx context.Context, m *fold.Model, o fold.Owed, ours publishedFact) (_ *fact, err error) {
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
	judged := slices.Contains([]tidemill.Action{tidemill.ActionJudge, tidemill.ActionTry, tidemill.ActionConclude}, p.Action)
	other := o.Type == tidemill.TypeModelRefused && o.Version != p.Version // the proposal has ended the trial or the canary of another version
	var kept *ledger.VersionRecord
	if judged || other { // the log may have added to the judgement
		if kept, err = r.record(ctx, m.Name, o.Version); err != nil {
			return nil, err
		}
		if kept != nil && kept.Judgement != nil {
			j = kept.Judgement
		}
	}
	f := &fact{typ: o.Type, id: tidemill.ID("announced", o.Proposal, o.Type), source: v.Source, model: m.Name, key: v.Subject,
		version: o.Version, by: o.By, chain: chainAfter(v),
		data: tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version, Champion: o.Champion, Artifact: p.Artifact,
			Before: o.Before, Turn: o.Turn, Reason: p.Reason, Judgement: j, Origin: p.Origin}}
	f.recipe, _ = v.Attribute(tidemill.AttrRecipe)
	f.run, _ = v.Attribute(tidemill.AttrRun)
	if other && kept != nil {
		f.recipe, f.run = kept.Recipe, kept.Run
		f.data = tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version, Champion: o.Champion, Artifact: kept.Artifact,
			Before: o.Before, Turn: o.Turn, Judgement: j, Origin: &kept.Origin}
	}
	return f, nil
}

// factAt reads a fact from the log.
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

// Components in the sources of facts about models.
const (
	byPromote = "promote" // source of facts that follow from the end of a run
	byTrial   = "trial"   // source of the ends of trials
	byGateway = "gateway" // source of a person's requests
	byForget  = "forget"  // source of facts that follow from the end of a key
)

// fact is a fact about a model before it is published.
type fact struct {
	typ, id, source string
	model, key      string
	version         int // 0 if there is none
	recipe, run, by string
	chain           chain
	data            any
}

// chain holds what a fact inherits from its cause.
type chain struct {
	cause              tidemill.Cause
	correlation, trace string
}

// chainAfter returns the chain of a fact that an event has caused.
func chainAfter(v *broker.View) chain {
	c := chain{cause: tidemill.Cause{Source: v.Source, ID: v.ID}}
	c.correlation, _ = v.Attribute(tidemill.AttrCorrelationID)
	c.trace, _ = v.Attribute(tidemill.AttrTraceParent)
	if c.correlation == "" {
		c.correlation = v.ID
	}
	return c
}

// view returns the fact as an event.
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

// publishedFact is a fact that this registrar has published, and its position.
type publishedFact struct {
	view broker.View
	at   tidemill.Mark
}

// publish publishes a fact, and returns it with the model as the log then has it.
func (r *Registrar) publish(ctx context.Context, f *fact) (publishedFact, *fold.Model, error) {
	v, err := f.view(r.now())
	if err != nil {
		return publishedFact{}, nil, err
	}
	where, m, err := r.o.Ledger.AppendModel(ctx, &v)
	if err != nil {
		return publishedFact{}, nil, fmt.Errorf("put %s of model %s on the log: %w", f.typ, f.model, err)
	}
	return publishedFact{v, tidemill.Mark{Partition: where.Partition, Offset: where.Offset}}, m, nil
}
