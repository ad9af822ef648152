package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
)

// lookEvery is how often it is looked what is owed. What is owed at two looks
// nobody is about to announce: whoever proposed it has died, or cannot.
const lookEvery = time.Second

// Watch announces what others have left unannounced, until the context ends. It
// goes by what the log says, so that nothing it missed is missed for ever.
func (r *Registrar) Watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w := &watcher{Registrar: r}
	for ctx.Err() == nil {
		w.report(ctx, w.look(ctx))
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// watcher remembers what was owed when it looked last, by the proposals' ids.
type watcher struct {
	*Registrar
	owed map[string]bool
	said string // the trouble that was told last
}

// look announces what was owed at the last look too. An error with one model
// keeps it from no other.
func (w *watcher) look(ctx context.Context) error {
	names, err := w.o.Ledger.Owed(ctx)
	if err != nil {
		return fmt.Errorf("look which models have something to announce: %w", err)
	}
	var failed []error
	before := w.owed
	w.owed = map[string]bool{}
	for _, name := range names {
		failed = append(failed, w.tend(ctx, name, before))
	}
	return errors.Join(failed...)
}

func (w *watcher) tend(ctx context.Context, name string, before map[string]bool) error {
	m, err := w.o.Ledger.Model(ctx, name)
	if err != nil {
		return fmt.Errorf("look up model %s: %w", name, err)
	}
	for _, o := range m.Owed {
		w.owed[o.Proposal] = true
	}
	_, err = w.announce(ctx, m, said{}, func(o tidemill.Owed) bool { return before[o.Proposal] })
	return err
}

// report tells of a trouble once. That the ledger is catching up is its own to
// tell.
func (w *watcher) report(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, ErrCatchingUp) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text != "" && text != w.said:
		w.log.Warn("changes of champions cannot be announced; it is tried again", "reason", err)
	case text == "" && w.said != "":
		w.log.Info("changes of champions can be announced again")
	}
	w.said = text
}
