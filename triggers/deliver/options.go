package deliver

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// Options say what a dispatcher works with.
type Options struct {
	Broker     *broker.Broker
	Config     *config.Config // the first; see Dispatcher.Apply
	Logger     *slog.Logger
	Registerer prometheus.Registerer // may be nil
	Tracer     trace.Tracer          // may be nil
	Resolve    Resolver              // may be nil; then attempts fail that go to a service or a function
	// Bearer is what functions of ours are told to know us by; empty is nothing.
	// Nobody else is told.
	Bearer  string
	Version string // of ours, for User-Agent
	// Skew is for how long another dispatcher may have a newer config than this
	// one: so long triggers that it does not know are not taken for removed.
	Skew time.Duration
	// SessionTimeout is after which a silent dispatcher is taken for dead; 0 is
	// the broker's own.
	SessionTimeout time.Duration
}

func (o *Options) check() error {
	if o.Broker == nil || o.Config == nil {
		return errors.New("open the dispatcher: it needs a broker and a config")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
