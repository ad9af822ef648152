package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/triggers/commands"
)

// Options say what to work on.
type Options struct {
	Ledger *ledger.Ledger
	Store  *store.Store
	Broker *broker.Broker // to read proposals again that others have made
	Names  tidemill.Names
	Asked  func() *commands.State // what is frozen; nil is nothing
	// Again asks for a run anew of which the version was refused because the
	// champion had changed meanwhile; nil is not to. Asked twice it asks once: the
	// cause names the wish.
	Again  func(context.Context, Lost) error
	Logger *slog.Logger
}

// Lost is a run whose version lost a race, and what the wish for another is to
// inherit.
type Lost struct {
	Run         string
	Cause       tidemill.Cause // its run.finished
	Correlation string
	Trace       string // traceparent
}

// Registrar is what works on models. Several may work at once: the log decides.
type Registrar struct {
	o    Options
	log  *slog.Logger
	now  func() time.Time
	step func(step) // tests stand still here
}

// step is a point that two who work on one model may pass in any order.
type step string

const (
	toRegister step = "register" // what is known has been read, and nothing written
	toPropose  step = "propose"  // it has been judged, against the champion of some turn
	toAnnounce step = "announce"
)

// New makes one.
func New(o Options) (*Registrar, error) {
	if o.Ledger == nil || o.Store == nil || o.Broker == nil {
		return nil, errors.New("make a registrar of models: it needs a ledger, a store and a broker")
	}
	if o.Asked == nil {
		o.Asked = func() *commands.State { return &commands.State{} }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Registrar{o: o, log: o.Logger, now: time.Now, step: func(step) {}}, nil
}

// Errors of wishes that cannot be.
var (
	ErrUnknown = errors.New("no such model or version is known")
	ErrRefused = errors.New("the log refuses it")
	ErrMoved   = errors.New("the champion has changed meanwhile")
)

// ErrCatchingUp says that nothing can be decided before the ledger knows all
// facts. It passes.
var ErrCatchingUp = ledger.ErrCatchingUp

// hopeless is an error that would be the same every time.
type hopeless struct{ error }

// Unwrap is what is wrong.
func (h hopeless) Unwrap() error { return h.error }

func hopelessf(format string, args ...any) error { return hopeless{fmt.Errorf(format, args...)} }

// Hopeless reports whether another try would end the same: somebody has to do
// something before.
func Hopeless(err error) bool {
	_, marked := errors.AsType[hopeless](err)
	return marked || errors.Is(err, broker.ErrTooLarge)
}

// work is a version on its way from its run's end to its verdict.
type work struct {
	*tidemill.Candidate
	result tidemill.Result // of the run
	chain  chain           // after run.finished
	report *tidemill.Report
}

// newWork reads a run's end; nil where it makes no version.
func newWork(v *broker.View) (*work, error) {
	var d tidemill.RunFinished
	if err := json.Unmarshal(v.Data, &d); err != nil {
		return nil, hopelessf("read the end of a run, event %s: %w", v.ID, err)
	}
	c := d.Candidate
	if d.Outcome != tidemill.OutcomeSucceeded || c == nil {
		return nil, nil
	}
	if err := tidemill.CheckDataset(c.Model); err != nil || c.Run == "" || c.Recipe == "" || c.Key == "" {
		return nil, hopelessf("read the end of run %s: what it made is for model %q, which is none, or nobody can tell whose it is (%v)", c.Run, c.Model, err)
	}
	if d.Artifact == "" {
		return nil, hopelessf("read the end of run %s: it made nothing that could be a version of model %s", c.Run, c.Model)
	}
	return &work{Candidate: c, result: d.Result, chain: after(v)}, nil
}

// foldingFor is how long a run's end is waited for that is on the log, and that
// the ledger does not know yet.
const foldingFor = 5 * time.Second

// counts reports whether the log took an attempt's success for the run's. It may
// have come behind the word of a controller that took the attempt for lost; then
// another attempt makes the version, and this one's is nobody's.
//
// A run that the ledger names no more counts: ten newer ones have ended since, or
// its key has gone. The model's own fold keeps out what is too old.
func (r *Registrar) counts(ctx context.Context, w *work) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, foldingFor)
	defer cancel()
	for {
		changed := r.o.Ledger.Changed()
		run, err := r.o.Ledger.Run(ctx, w.Run)
		if errors.Is(err, ledger.ErrUnknown) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("look up run %s, which made a version of model %s: %w", w.Run, w.Model, err)
		}
		if is, known := taken(run, w.Attempt); known {
			return is, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the end of run %s, which is %s: %w: %w", w.Run, run.State, ErrCatchingUp, context.Cause(ctx))
		}
	}
}

// taken reports whether a run has succeeded by one of its attempts, if that is
// known.
func taken(run *tidemill.Run, attempt int) (is, known bool) {
	n := len(run.Attempts)
	switch {
	case run.State.Ended():
		return run.State == tidemill.RunSucceeded && n > 0 && run.Attempts[n-1].Number == attempt, true
	case n < attempt, n == attempt && run.State == tidemill.RunRunning:
		return false, false
	}
	return false, true
}

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
	_, err = w.announce(ctx, m, said{}, func(o fold.Owed) bool { return before[o.Proposal] })
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
