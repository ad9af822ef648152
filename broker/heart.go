package broker

import (
	"context"
	"errors"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// heart beats in its own goroutine, so that nothing that member does for long
// costs it its membership. It says once what ends the generation. After a call
// for a rebalance it goes on: whoever still looks for offsets, or waits for a
// callback, lives.
func (m *member) heart(ctx context.Context, who identified) <-chan error {
	ended := make(chan error, 1)
	m.c.running.Go(func() {
		every := m.c.opt.SessionTimeout / heartbeatsInLife
		for sleep(ctx, every) == nil {
			err := m.beat(ctx, who)
			forgotten := errors.Is(err, errForgotten)
			if forgotten || errors.Is(err, kafka.RebalanceInProgress) {
				select {
				case ended <- err:
				default: // said already
				}
			}
			if forgotten {
				return
			}
		}
	})
	return ended
}

// identified is a member in one generation.
type identified struct {
	id         string
	generation int32
}

// beat sends one heartbeat. It waits for the answer no longer than leaves time
// for another, or one lost answer would cost the membership.
func (m *member) beat(ctx context.Context, who identified) error {
	ctx, cancel := context.WithTimeout(ctx, m.c.opt.SessionTimeout/4)
	defer cancel()
	node, err := m.c.b.coordinator(ctx, m.group)
	if err != nil {
		return err
	}
	var frame wire.Frame
	frame.Heartbeat(m.c.b.names.Install(), m.group, who.generation, who.id)
	answer, err := m.c.b.call(ctx, node, &frame, nil)
	if err != nil {
		return err
	}
	code, err := wire.ReadHeartbeat(answer)
	if err == nil && code != 0 {
		err = asMembership(kafka.Error(code))
	}
	return err
}
