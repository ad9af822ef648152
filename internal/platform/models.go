package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	keys "tidemill.dev/functions/forget"
	"tidemill.dev/functions/promote"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/models/erase"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/triggers/deadletters"
)

const promoteFunction = "promote"

// usesPromote reports whether a trigger's target is our function that judges versions.
func usesPromote(to config.Target) bool { return to.Function == promoteFunction }

// openModels needs the foreman, because it requests lost runs again.
func (p *Platform) openModels(w *runServices) (err error) {
	w.models, err = registry.New(registry.Options{Ledger: w.ledger, Store: w.store, Broker: p.broker, Names: p.names, Asked: w.asked.Now,
		Try: p.tryModel, Again: func(ctx context.Context, l registry.Lost) error {
			return w.foreman.Again(ctx, l.Run, l.Cause, l.Correlation, l.Trace)
		}, Logger: p.log})
	if err != nil {
		return fmt.Errorf("open the models: %w", err)
	}
	return nil
}

// tryModel loads and asks the model of a version, by the engine of each scorer that serves it. The
// first scorer that cannot serve it decides. A model.onnx without a scorer is tried too,
// because clients may ask any champion.
func (p *Platform) tryModel(ctx context.Context, ask registry.ServingRequest) (*tidemill.ServingCheck, error) {
	trial := &tidemill.ServingCheck{}
	for i := range p.Config().Scorers {
		c := &p.Config().Scorers[i]
		if !c.Serves(ask.Model, ask.Key) {
			continue
		}
		trial = &tidemill.ServingCheck{Scorer: c.Name}
		if err := p.tryWith(ctx, c, ask, trial); err != nil || trial.Error != "" || trial.Missing != "" {
			return trial, err
		}
	}
	if trial.Scorer != "" {
		return trial, nil
	}
	_, err := p.works.store.File(ctx, ask.Artifact, infer.ModelFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // the run made another kind of artifact
	case err != nil:
		return nil, fmt.Errorf("look for %s of artifact %s, to try the model: %w", infer.ModelFile, ask.Artifact, err)
	}
	return trial, p.tryWith(ctx, &config.Scorer{Engine: p.Config().Engine}, ask, trial)
}

// tryWith tries a model as one scorer does, and notes the result. The error is one that another try
// may not have.
func (p *Platform) tryWith(ctx context.Context, c *config.Scorer, ask registry.ServingRequest, trial *tidemill.ServingCheck) error {
	cache, err := p.modelCache(ctx)
	if err != nil {
		return err
	}
	m, err := cache.Load(ctx, &infer.Ref{Model: ask.Model, Artifact: ask.Artifact, Engine: c.Engine})
	if err == nil {
		defer m.Release()
		trial.Engine, trial.Golden = m.Engine(), m.Golden() != nil
		if err = score.Fits(c, m); err == nil {
			trial.Warning, err = checkLabels(m.Labels(), ask.Labels)
		}
		if err == nil && !trial.Golden {
			trial.Rows, err = m.Try()
		}
		if errors.Is(err, infer.ErrAway) {
			return err
		}
		if err != nil {
			trial.Error = trialText(err)
		}
		return nil
	}
	switch {
	case errors.Is(err, infer.ErrUnfit):
		trial.Error = trialText(errors.Unwrap(err))
	case errors.Is(err, infer.ErrNoRuntime):
		trial.Missing = trialText(errors.Unwrap(err))
	default:
		return err
	}
	return nil
}

// checkLabels returns an error if a model has none of the labels that its run has predicted. Then
// the predictions are not the model's, or the model's labels have other names. If the model lacks
// some of the labels it returns a warning, because a trainer may add a label by a rule.
func checkLabels(has, predicted []string) (warning string, err error) {
	lacks := slices.DeleteFunc(slices.Clone(predicted), func(label string) bool { return slices.Contains(has, label) })
	switch {
	case len(has) == 0 || len(lacks) == 0:
		return "", nil
	case len(lacks) < len(predicted):
		return fmt.Sprintf("predictions.csv has %s, which the model cannot answer: its labels are %s; if they have wrong names, write the right ones into model.yaml", someOf(lacks), someOf(has)), nil
	}
	return "", fmt.Errorf("its labels are %s, and predictions.csv has %s: write the right labels into model.yaml", someOf(has), someOf(predicted))
}

// someOf lists the first few texts.
func someOf(all []string) string {
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], ", ") + ", …"
	}
	return strings.Join(all, ", ")
}

// trialText returns the text of an error without its first words, which the verdict has too.
func trialText(err error) string {
	return strings.TrimPrefix(err.Error(), infer.ErrUnfit.Error()+": ")
}

// promoteHandler returns the function that judges versions.
func (p *Platform) promoteHandler() http.Handler {
	return functions.ViewHandler(promote.New(promote.Options{Models: p.works.models}), functions.Options{Logger: p.log})
}

// Models returns the registry of versions and champions; nil without runs.
func (p *Platform) Models() *registry.Registrar {
	if p.works == nil {
		return nil
	}
	return p.works.models
}

// usesForget reports whether a trigger's target is our function that forgets keys.
func usesForget(to config.Target) bool { return to.Function == config.FunctionForget }

// openForgetter needs the models, because models are forgotten with their keys.
func (p *Platform) openForgetter(w *runServices) (err error) {
	w.letters = &lazyLetters{p: p}
	w.forgetter, err = erase.New(erase.Options{Broker: p.broker, Producer: p.announcer, Names: p.names, Config: p.Config,
		Ledger: w.ledger, Store: w.store, Foreman: w.foreman, Registrar: w.models, Letters: w.letters.open, Logger: p.log})
	if err != nil {
		return fmt.Errorf("open what forgets keys: %w", err)
	}
	return nil
}

// forgetHandler returns the function that forgets keys.
func (p *Platform) forgetHandler() http.Handler {
	return functions.ViewHandler(keys.New(p.works.forgetter), functions.Options{Logger: p.log})
}

// Forgetter returns the forgetter of keys; nil without runs.
func (p *Platform) Forgetter() *erase.Forgetter {
	if p.works == nil {
		return nil
	}
	return p.works.forgetter
}

// lazyLetters opens the dead letters at the first use, because most processes never need them.
type lazyLetters struct {
	p *Platform

	mu     retry.Mutex
	book   *deadletters.Book
	closed bool
}

func (l *lazyLetters) open(ctx context.Context) (_ *deadletters.Book, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, errors.New("read the dead letters: this process is stopping")
	case l.book == nil:
		if l.book, err = deadletters.Open(ctx, l.p.broker, l.p.log); err != nil {
			l.book = nil
			return nil, fmt.Errorf("read the dead letters: %w", err)
		}
	}
	return l.book, nil
}

func (l *lazyLetters) close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.book == nil {
		return nil
	}
	return l.book.Close(ctx)
}

// publishCommit publishes the event of a commit.
func (p *Platform) publishCommit(ctx context.Context, c api.Commit) error {
	v, err := newData(p.names, &c)
	if err != nil {
		return fmt.Errorf("announce commit %s of dataset %s: %w", c.ID, c.Dataset, err)
	}
	if _, err := p.announcer.Publish(ctx, p.Config().StreamFor(v.Type), &v); err != nil {
		return fmt.Errorf("announce commit %s of dataset %s: %w", c.ID, c.Dataset, err)
	}
	return nil
}

// newDataEvent is the data of a new-data event.
type newDataEvent struct {
	Parent  string `json:"parent,omitempty"`
	Number  int64  `json:"number"`
	Added   int    `json:"added"`
	Changed int    `json:"changed"`
	Removed int    `json:"removed"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`
	Message string `json:"message,omitempty"`
}

// newData returns the event of a commit. Its id derives from the commit, so a repeated announcement
// is the same event.
func newData(names tidemill.Names, c *api.Commit) (broker.View, error) {
	data, err := json.Marshal(newDataEvent{c.Parent, c.Number, c.Added, c.Changed, c.Removed, c.Files, c.Bytes, c.Message})
	if err != nil {
		return broker.View{}, err
	}
	id := tidemill.ID(tidemill.TypeNewData, c.Dataset, c.Branch, c.ID)
	v := broker.View{ID: id, Source: names.Source("data"), Type: tidemill.TypeNewData, Subject: c.Subject,
		Time: c.Time.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeNewData),
		DataContentType: "application/json", Data: data}
	for _, a := range []broker.Attribute{
		{Name: tidemill.AttrDataset, Value: c.Dataset}, {Name: tidemill.AttrBranch, Value: c.Branch}, {Name: tidemill.AttrCommit, Value: c.ID},
		{Name: tidemill.AttrCorrelationID, Value: id}, {Name: tidemill.AttrRun, Value: c.Run}, {Name: tidemill.AttrAuthID, Value: c.By},
	} {
		if a.Value != "" {
			v.Extensions = append(v.Extensions, a)
		}
	}
	return v, nil
}
