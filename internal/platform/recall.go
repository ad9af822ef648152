package platform

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/repeats"
	"tidemill.dev/internal/tail"
)

// recallWithin bounds what a start may spend on remembering.
const recallWithin = 10 * time.Second

// recallMost is as many of a stream as are remembered. The newest are read: they
// are the ones that are repeated.
const recallMost = 1_000_000

// recallRepeats has a gateway that starts know again what is on the streams
// since their dedupe began, where Redis does not: a laptop's Redis forgets all
// when it stops, and any Redis may. It reads the log, which forgets nothing.
func (p *Platform) recallRepeats(ctx context.Context, memory *repeats.Memory) {
	if memory == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recallWithin)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range p.Config().Streams {
		if s.Dedupe == 0 {
			continue
		}
		all.Go(func() {
			n, err := p.recall(ctx, memory, s)
			switch {
			case err != nil:
				p.log.Warn("some repeats of earlier events may be stored again", "stream", s.Name, "events", n, "reason", err)
			case n > 0:
				p.log.Info("earlier events are recognised again", "stream", s.Name, "events", n)
			}
		})
	}
	all.Wait()
}

// recall reads one stream, and counts what it has the memory remember.
func (p *Platform) recall(ctx context.Context, memory *repeats.Memory, s config.Stream) (n int, err error) {
	if known, err := memory.Known(ctx, s.Name); err == nil && known {
		return 0, nil
	}
	r, err := tail.Open(ctx, p.broker, tail.Options{Stream: s.Name, Start: broker.Since(time.Now().Add(-s.Dedupe)), ToEnd: true, Newest: recallMost})
	if errors.Is(err, broker.ErrNoStream) {
		return 0, nil // nothing can be on it
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	for {
		batch, err := r.Next(ctx)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		for i := range batch {
			if e := &batch[i]; e.Err == nil {
				memory.Recall(s.Name, s.Dedupe, e.Source, e.ID, e.Received)
				n++
			}
		}
	}
}
