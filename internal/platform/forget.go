package platform

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"tidemill.dev/config"
	"tidemill.dev/functions"
	keys "tidemill.dev/functions/forget"
	"tidemill.dev/internal/forget"
	"tidemill.dev/triggers/letters"
)

// usesForget reports whether a trigger's target is the function of ours that
// ends keys.
func usesForget(to config.Target) bool { return to.Function == config.FunctionForget }

// openForgetter needs the models, which end with their keys.
func (p *Platform) openForgetter(w *works) (err error) {
	w.letters = &lazyLetters{p: p}
	w.forgetter, err = forget.New(forget.Options{Broker: p.broker, Producer: p.announcer, Names: p.names, Config: p.Config,
		Ledger: w.ledger, Store: w.store, Foreman: w.foreman, Registrar: w.models, Letters: w.letters.open, Logger: p.log})
	if err != nil {
		return fmt.Errorf("open what forgets keys: %w", err)
	}
	return nil
}

// forget is the function that ends keys.
func (p *Platform) forget() http.Handler {
	return functions.Handler(keys.New(p.works.forgetter), functions.Options{Logger: p.log})
}

// Forgetter is what ends keys; nil without runs.
func (p *Platform) Forgetter() *forget.Forgetter {
	if p.works == nil {
		return nil
	}
	return p.works.forgetter
}

// lazyLetters is the book of dead letters, opened when somebody needs it first:
// most processes never do.
type lazyLetters struct {
	p *Platform

	mu     sync.Mutex
	book   *letters.Book
	closed bool
}

func (l *lazyLetters) open(ctx context.Context) (_ *letters.Book, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, errors.New("open the book of dead letters: this process is stopping")
	case l.book == nil:
		if l.book, err = letters.Open(ctx, l.p.broker, l.p.log); err != nil {
			l.book = nil
			return nil, fmt.Errorf("open the book of dead letters: %w", err)
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
