package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
)

// Options say what to work on.
type Options struct {
	Ledger *ledger.Ledger
	Store  *store.Store
	Broker *broker.Broker // to read proposals again that others have made
	Names  tidemill.Names
	Asked  func() *tidemill.Commands // what is frozen; nil is nothing
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
		o.Asked = func() *tidemill.Commands { return &tidemill.Commands{} }
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
