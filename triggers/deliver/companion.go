package deliver

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev/broker"
)

// companions is how many partitions the stream's parked companion has. A stream
// that was grown by hand has more than that until somebody grows the companion,
// too: without its own a partition must wait, for nothing of it could be parked.
func (l *lane) companions(ctx context.Context) (int32, error) {
	all, err := l.d.o.Broker.Ends(ctx, l.parked())
	if errors.Is(err, broker.ErrNoStream) {
		return 0, nil
	}
	return int32(len(all)), err
}

// marksOf are the low marks of partitions that have a companion; none for the
// others.
func (l *lane) marksOf(ctx context.Context, at []broker.Position, companions int32) ([]broker.Position, error) {
	marks := make([]broker.Position, len(at))
	var ask []broker.Position
	for n, p := range at {
		marks[n] = broker.Position{Stream: l.parked(), Partition: p.Partition, Offset: none}
		if p.Partition < companions {
			ask = append(ask, marks[n])
		}
	}
	if len(ask) == 0 {
		return marks, nil
	}
	found, err := l.d.o.Broker.Committed(ctx, l.group, ask)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		for n := range marks {
			if marks[n].Partition == f.Partition {
				marks[n] = f
			}
		}
	}
	return marks, nil
}

// bereave makes a partition wait that has no companion.
func (l *lane) bereave(p *partition) {
	p.missing = true
	l.d.o.Logger.Warn("a partition's events wait, for they have nowhere to be parked", "stream", l.stream.Name, "partition", p.number,
		"reason", fmt.Sprintf("stream %s has no such partition", l.parked()),
		"next", fmt.Sprintf("give %s the partitions of %s: start a gateway, or add them to its topic by hand", l.parked(), l.stream.Name))
}

// seek lets partitions go on whose companion has come. It is empty: nobody but
// the partition's owner writes there.
func (l *lane) seek(ctx context.Context) {
	if len(l.bereaved()) == 0 {
		return
	}
	have, err := l.companions(ctx)
	if err != nil {
		l.d.o.Logger.Warn("cannot tell whether events can be parked now", "stream", l.stream.Name, "reason", err)
		return
	}
	for _, s := range l.all() {
		if s.p.number >= have {
			continue
		}
		s.do(func(p *partition, now moment) {
			if p.missing {
				p.missing = false
				p.release(now)
			}
		})
		poke(l.work)
	}
}

// bereaved are the partitions that wait for their companion.
func (l *lane) bereaved() (all []int32) {
	for _, s := range l.all() {
		s.mu.Lock()
		if s.p.missing {
			all = append(all, s.p.number)
		}
		s.mu.Unlock()
	}
	return all
}
