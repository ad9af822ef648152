package broker

import (
	"context"
	"strconv"
	"strings"

	"tidemill.dev"
)

// Place returns the position as a text, such as messages/3/17. An answer of a scorer has the place
// of its input as its id.
func (p Position) Place() string {
	return p.Stream + "/" + strconv.Itoa(int(p.Partition)) + "/" + strconv.FormatInt(p.Offset, 10)
}

// ParsePlace reads a text as [Position.Place] writes it.
func ParsePlace(text string) (p Position, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || tidemill.CheckStream(parts[0]) != nil {
		return p, false
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	offset, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || err2 != nil || partition < 0 || offset < 0 {
		return p, false
	}
	return Position{Stream: parts[0], Partition: int32(partition), Offset: offset}, true
}

// EventAt calls fn with the event at a position, and reports whether there is one: the position may be
// past the end of its partition, or the event may have expired.
func (b *Broker) EventAt(ctx context.Context, at Position, fn func(*Incoming)) (found bool, err error) {
	ends, err := b.Ends(ctx, at.Stream)
	if err != nil || int(at.Partition) >= len(ends) || at.Offset >= ends[at.Partition].Offset {
		return false, err
	}
	const oneEvent = 1 // least bytes to read; the read returns a whole event
	_, err = b.Read(ctx, at, oneEvent, func(e *Incoming) bool {
		if e.Offset == at.Offset && e.Err == nil {
			found = true
			fn(e)
		}
		return e.Offset < at.Offset
	})
	return found, err
}
