package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/runs"
)

// Asker puts wishes on the log.
type Asker interface {
	Request(context.Context, runs.Request) (runs.Answer, error)
}

// Options say what to work with.
type Options struct {
	Config func() *config.Config
	Asker  Asker
	// Keys calls fn with every key that a recipe knows.
	Keys func(ctx context.Context, recipe string, fn func(string) bool) error
}

// New is the function for one recipe.
func New(o Options, recipe string) functions.Func {
	t := &trainer{opt: o, recipe: recipe}
	return func(ctx context.Context, e event.Event) ([]event.Event, error) {
		if err := t.take(ctx, e); err != nil {
			return nil, marked(fmt.Errorf("ask for a run of recipe %s: %w", recipe, err))
		}
		return nil, nil
	}
}

type trainer struct {
	opt    Options
	recipe string
	rules  compiled
}

// errStale says that our config does not want what was dispatched to us. It may
// be older than the dispatcher's, or newer; they agree in a moment. If they agree
// that nobody wants the event, it becomes a dead letter and no silence.
var errStale = errors.New("the config here wants no such event; if it was changed just now, this passes")

func (t *trainer) take(ctx context.Context, e event.Event) error {
	v, err := broker.FromEvent(e)
	if err != nil {
		return functions.Permanent(err)
	}
	r, err := t.rules.of(t.opt.Config(), t.recipe)
	if err != nil {
		return err
	}
	w, ok := r.choose(&v)
	if !ok {
		return errStale
	}
	if w.Each && v.Subject == "" {
		return t.takeEach(ctx, &v, w)
	}
	key, err := r.keyOf(&v, w)
	if err != nil {
		return functions.Permanent(err)
	}
	_, err = t.opt.Asker.Request(ctx, request(&v, t.recipe, key, w))
	return err
}

// catchingUp is how long an event stays away while the ledger is filled.
const catchingUp = 2 * time.Second

// marked says of an error whether the event shall come again.
func marked(err error) error {
	switch {
	case errors.Is(err, broker.ErrTooLarge), errors.Is(err, runs.ErrKey):
		return functions.Permanent(err)
	case errors.Is(err, runs.ErrCatchingUp):
		return functions.RetryAfter(err, catchingUp)
	}
	return err
}
