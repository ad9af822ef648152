package erase

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/deadletters"
)

// Options say what to work on.
type Options struct {
	Broker    *broker.Broker
	Producer  *broker.Producer
	Names     tidemill.Names
	Config    func() *config.Config
	Ledger    *ledger.Ledger
	Store     *store.Store
	Foreman   *scheduler.Foreman
	Registrar *registry.Registrar
	// Letters opens the book of dead letters, or returns the one that is open.
	Letters func(context.Context) (*deadletters.Book, error)
	Grace   time.Duration // of the store; its default if it is 0
	// Patience is how long an attempt under way is waited for in one go; 20 s.
	Patience time.Duration
	// Watch is told of each step before it is begun: tests end the work there.
	// Nil is nobody.
	Watch  func(step string)
	Logger *slog.Logger
}

const defaultPatience = 20 * time.Second

// Forgetter ends keys. Several may work on one key at once: all that they do is
// named after the fact that asked.
type Forgetter struct {
	o   Options
	now func() time.Time
}

// New makes one.
func New(o Options) (*Forgetter, error) {
	switch {
	case o.Broker == nil || o.Producer == nil || o.Config == nil || o.Letters == nil:
		return nil, errors.New("make what forgets keys: it needs a broker, a producer, a config and the dead letters")
	case o.Ledger == nil || o.Store == nil || o.Foreman == nil || o.Registrar == nil:
		return nil, errors.New("make what forgets keys: it needs a ledger, a store, a foreman and a registrar")
	}
	if o.Grace == 0 {
		o.Grace = store.DefaultGrace
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Forgetter{o: o, now: time.Now}, nil
}

// ErrLive says that an attempt of the key is still under way. It passes: the
// attempt has been told to end.
var ErrLive = errors.New("an attempt of the key is still ending")

// ErrUnknown says that nothing is known of such a forgetting.
var ErrUnknown = errors.New("no such forgetting is known")

// ErrKey says that a text can be no key.
var ErrKey = scheduler.ErrKey

// ErrCatchingUp says that nothing can be decided before the ledger knows all
// facts. It passes.
var ErrCatchingUp = ledger.ErrCatchingUp
