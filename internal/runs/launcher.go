package runs

import (
	"context"
	"errors"

	"tidemill.dev"
	"tidemill.dev/config"
)

// Launcher starts attempts where there is hardware: in child processes here, or
// in a cluster. It is the one seam between the two.
type Launcher interface {
	// Launch starts an attempt and returns without waiting for its end. One that
	// was started before is a success.
	Launch(context.Context, Attempt) error
	// Has reports whether an attempt that was launched may still be at work. What
	// it has not, nobody will hear of again.
	Has(ctx context.Context, name string) (bool, error)
	// Stop ends an attempt that counts no more, without asking it.
	Stop(ctx context.Context, name string) error
	// Slots is how many attempts a pool takes; 0 is no bound.
	Slots(config.Pool) int
}

// Attempt is what a launcher starts.
type Attempt struct {
	Name   string // tidemill.AttemptName
	Run    string
	Recipe string
	Key    string
	Number int
	Token  string // of this attempt alone
	Plan   tidemill.Plan
}

// ErrUnlaunchable is what a launcher's error wraps where another try would fail
// too: there is no engine for images, say. The run then fails, with the error's
// words. After any other error the attempt counts as lost, and the run gets
// another one.
var ErrUnlaunchable = errors.New("cannot be launched here")
