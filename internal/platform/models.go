package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	keys "tidemill.dev/functions/forget"
	"tidemill.dev/functions/promote"
	"tidemill.dev/internal/models/erase"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/triggers/deadletters"
)

const promoteFunction = "promote"

// usesPromote reports whether a trigger's target is our function that judges versions.
func usesPromote(to config.Target) bool { return to.Function == promoteFunction }

// openModels needs the foreman, because it requests lost runs again.
func (p *Platform) openModels(w *runServices) (err error) {
	w.models, err = registry.New(registry.Options{Ledger: w.ledger, Store: w.store, Broker: p.broker, Names: p.names, Asked: w.asked.Now,
		Again: func(ctx context.Context, l registry.Lost) error {
			return w.foreman.Again(ctx, l.Run, l.Cause, l.Correlation, l.Trace)
		}, Logger: p.log})
	if err != nil {
		return fmt.Errorf("open the models: %w", err)
	}
	return nil
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

	mu     sync.Mutex
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
