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

// Options configure a Registrar.
type Options struct {
	Ledger *ledger.Ledger
	Store  *store.Store
	Broker *broker.Broker // source of proposals that other processes have made
	Names  tidemill.Names
	Asked  func() *commands.State // commands that freeze promotions; nil means none
	// Try loads the model of a version and asks it, as its scorers do; nil means that no version is
	// tried. It returns nil if nothing serves the model.
	Try func(context.Context, ServingRequest) (*tidemill.ServingCheck, error)
	// Again asks for another run if a version was refused because the champion had changed
	// meanwhile; nil means never. A second call makes no second request, because the cause names
	// the request.
	Again  func(context.Context, Lost) error
	Logger *slog.Logger
}

// ServingRequest names a model to try.
type ServingRequest struct {
	Model, Key string
	Artifact   string   // tree with the model's files
	Labels     []string // labels that the version's run has predicted; nil if they are not known
}

// Lost is a run whose version lost a race, with the attributes that the request for another run
// inherits.
type Lost struct {
	Run         string
	Cause       tidemill.Cause // run.finished of the run
	Correlation string
	Trace       string // traceparent
}

// Registrar works on models. Several may work at the same time, because the log decides.
type Registrar struct {
	o    Options
	log  *slog.Logger
	now  func() time.Time
	step func(step) // hook at which tests wait
}

// step is a point that two processes at work on one model may pass in any order.
type step string

const (
	toRegister step = "register" // the model was read, and nothing is written
	toPropose  step = "propose"  // the version was judged against the champion of some turn
	toAnnounce step = "announce"
)

// New returns a Registrar.
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

// Errors of requests that cannot be fulfilled.
var (
	ErrUnknown = errors.New("no such model or version is known")
	ErrRefused = errors.New("the request is refused")
	ErrMoved   = errors.New("the champion has changed meanwhile")
)

// ErrCatchingUp reports that the ledger does not know all facts yet. It is temporary.
var ErrCatchingUp = ledger.ErrCatchingUp

// permanentError is an error that would be the same at every try.
type permanentError struct{ error }

// Unwrap returns the cause.
func (h permanentError) Unwrap() error { return h.error }

func hopelessf(format string, args ...any) error { return permanentError{fmt.Errorf(format, args...)} }

// Hopeless reports whether another try would fail in the same way, so that a person must act first.
func Hopeless(err error) bool {
	_, marked := errors.AsType[permanentError](err)
	return marked || errors.Is(err, broker.ErrTooLarge)
}

// work is a version between the end of its run and its verdict.
type work struct {
	*tidemill.Candidate
	result tidemill.Result // result of the run
	chain  chain           // chain of facts after run.finished
	report *tidemill.Report
}

// newWork reads the end of a run; nil if the run makes no version.
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
		return nil, hopelessf("read the end of run %s: the model name %q is invalid, or the run, recipe or key is missing (%v)", c.Run, c.Model, err)
	}
	if d.Artifact == "" {
		return nil, hopelessf("read the end of run %s: it made nothing that could be a version of model %s", c.Run, c.Model)
	}
	return &work{Candidate: c, result: d.Result, chain: chainAfter(v)}, nil
}

// foldingFor is how long to wait until the ledger knows the end of a run that is on the log.
const foldingFor = 5 * time.Second

// isAccepted reports whether the log took an attempt's success as the run's. The success may have
// come after a controller reported the attempt as lost. In this case another attempt makes the
// version, and the version of the lost attempt is dropped.
//
// A run that the ledger no longer names counts: ten newer ones have ended since, or its key was
// forgotten. The model's fold keeps out versions that are too old.
func (r *Registrar) isAccepted(ctx context.Context, w *work) (bool, error) {
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
		if is, known := hasSucceeded(run, w.Attempt); known {
			return is, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the end of run %s, which is %s: %w: %w", w.Run, run.State, ErrCatchingUp, context.Cause(ctx))
		}
	}
}

// hasSucceeded reports whether a run has succeeded by the given attempt, if that is known.
func hasSucceeded(run *tidemill.Run, attempt int) (is, known bool) {
	n := len(run.Attempts)
	switch {
	case run.State.Ended():
		return run.State == tidemill.RunSucceeded && n > 0 && run.Attempts[n-1].Number == attempt, true
	case n < attempt, n == attempt && run.State == tidemill.RunRunning:
		return false, false
	}
	return false, true
}

// lookEvery is how often Watch looks for owed announcements. If an announcement is owed at two
// looks, its proposer has died or cannot announce it.
const lookEvery = time.Second

// Watch announces changes that other processes have left unannounced, until the context ends. The
// watcher reads the changes from the ledger, so a missed change is found later.
func (r *Registrar) Watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w := &watcher{Registrar: r}
	for ctx.Err() == nil {
		w.report(ctx, w.checkOwed(ctx))
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// watcher remembers the owed announcements of its last look, by the ids of their proposals.
type watcher struct {
	*Registrar
	owed      map[string]bool
	lastError string // text of the error that was logged last
}

// checkOwed announces changes that were also owed at the last look. An error with one model does not
// stop the others.
func (w *watcher) checkOwed(ctx context.Context) error {
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
	_, err = w.announce(ctx, m, publishedFact{}, func(o fold.Owed) bool { return before[o.Proposal] })
	return err
}

// report logs an error once. It does not log that the ledger is catching up, because the ledger
// does.
func (w *watcher) report(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, ErrCatchingUp) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text != "" && text != w.lastError:
		w.log.Warn("registrar: announcing changes of champions failed; retrying", "reason", err)
	case text == "" && w.lastError != "":
		w.log.Info("registrar: announcing changes of champions works again")
	}
	w.lastError = text
}
