package ledger

import (
	"errors"
	"fmt"

	"tidemill.dev/broker"
)

var (
	// ErrCatchingUp says that Redis does not hold all facts yet. Nothing may be
	// decided before it does.
	ErrCatchingUp = errors.New("catching up with the facts")

	// ErrUnknown says that the ledger does not name such a run.
	ErrUnknown = errors.New("no such run is known")

	// ErrNoPlace says that a query's After is none that a page gave as its Next.
	ErrNoPlace = errors.New("that is no place in it")

	// ErrClosed says that the ledger has been closed.
	ErrClosed = errors.New("the ledger is closed")
)

// AppendedError says that a fact is on the log and counts, and that nobody has
// waited long enough to say what became of it. Appending it again under the same
// id does no harm.
type AppendedError struct {
	Position broker.Position
	Err      error // ErrCatchingUp or ErrClosed, and why it was not waited longer
}

// Error says where the fact lies.
func (e *AppendedError) Error() string {
	return fmt.Sprintf("learn what became of the fact at offset %d of partition %d of stream %s, which is on the log: %v",
		e.Position.Offset, e.Position.Partition, e.Position.Stream, e.Err)
}

// Unwrap is why.
func (e *AppendedError) Unwrap() error { return e.Err }
