package deliver

import (
	"context"
	"errors"
	"time"

	"tidemill.dev/broker"
)

const (
	trimEvery  = time.Minute
	trimWithin = 30 * time.Second
)

// trimLoop deletes the records of the parked log that no rebuild reads any more. Otherwise a stream
// that is kept for ever would keep its parked events for ever, too. Only the owner of a partition
// deletes, and only below a mark that was committed at the time of the loop's previous turn. A former
// owner knows a lower mark, so it deletes less.
func (pl *pipeline) trimLoop() {
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	var before []broker.Position
	for denied := false; !denied; {
		select {
		case <-t.C:
		case <-pl.life.Done():
			return
		}
		before, denied = pl.trim(before)
	}
}

// trim deletes records below the marks of the previous turn. It returns the present marks, and whether
// the Kafka user has no right to delete.
func (pl *pipeline) trim(before []broker.Position) (marks []broker.Position, denied bool) {
	ctx, cancel := context.WithTimeout(pl.life, trimWithin)
	defer cancel()
	var below []broker.Position
	for _, s := range pl.assignmentsNow() {
		s.apply(func(p *partition, _ millis) {
			if p.closed || p.missing || p.mark <= 0 {
				return
			}
			marks = append(marks, broker.Position{Stream: pl.parked(), Partition: p.number, Offset: p.mark})
			for _, old := range before {
				if old.Partition == p.number && old.Offset > p.trimmed {
					below = append(below, old)
				}
			}
		})
	}
	if len(below) == 0 {
		return marks, false
	}
	err := pl.d.o.Broker.DeleteBelow(ctx, below)
	switch {
	case err == nil:
		pl.trimmed(below)
	case errors.Is(err, broker.ErrMayNotDelete):
		pl.d.o.Logger.Warn("dispatcher: deleting records of ended events failed; the parked stream keeps them for its retention", "stream", pl.stream.Name, "reason", err)
		return nil, true
	case pl.life.Err() == nil:
		pl.d.o.Logger.Warn("dispatcher: deleting records of ended events failed; retrying", "stream", pl.stream.Name, "reason", err)
	}
	return marks, false
}

func (pl *pipeline) trimmed(below []broker.Position) {
	for _, b := range below {
		if s := pl.assignment(b.Partition); s != nil {
			s.apply(func(p *partition, _ millis) { p.trimmed = max(p.trimmed, b.Offset) })
		}
	}
}
