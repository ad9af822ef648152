package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"tidemill.dev/broker"
)

// Extensions that name an output's input.
const (
	extPartition = "inpartition"
	extOffset    = "inoffset"
)

// copier copies the stream in to the stream out, each event once. An output has its input's key and
// so the same partition number, so one partition of out shows all copies of one partition of in.
type copier struct {
	c    *child
	b    *broker.Broker
	r    *rand.Rand
	t    *broker.Transactor
	from *broker.Consumer
	// seen is used in Assigned, which never runs twice at once for one partition. The lock protects
	// the maps.
	seen *outputsSeen
}

func (c *child) process(ctx context.Context) error {
	b, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	p := &copier{c: c, b: b, r: rand.New(rand.NewPCG(c.seed, uint64(c.index))), seen: newSeen(c, b)}
	p.from, err = c.consumer(ctx, b, broker.ConsumerOptions{Group: groupCopy, Streams: []string{streamIn}, MaxBytes: 1 << 20,
		CommitEvery: 200 * time.Millisecond, Assigned: p.seen.skip})
	if err != nil {
		return err
	}
	if p.t, err = p.from.Transactor(broker.ProducerOptions{}); err != nil {
		return err
	}
	c.j.note("joining")
	err = p.copyAll(ctx)
	c.j.note("leaving")
	until, cancel := context.WithTimeout(context.Background(), stopLimit-5*time.Second)
	defer cancel()
	return errors.Join(err, p.t.Close(until), p.from.Close(until))
}

func (p *copier) copyAll(ctx context.Context) error {
	for {
		batch, err := p.gather(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := p.copyBatch(batch); err != nil {
			return err
		}
	}
}

// gather takes one delivery and, sometimes, further ones that are ready, so that transactions span
// partitions.
func (p *copier) gather(ctx context.Context) ([]*broker.Delivery, error) {
	d, err := p.from.Poll(ctx)
	if err != nil {
		return nil, err
	}
	batch := []*broker.Delivery{d}
	for range p.r.IntN(4) {
		soon, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		d, err := p.from.Poll(soon)
		cancel()
		if err != nil {
			break // the next gather gets the same error
		}
		batch = append(batch, d)
	}
	return batch, nil
}

// copyBatch copies deliveries in one transaction. If a transaction could not begin, copyBatch tries
// again. It does not repeat an aborted transaction, because the deliveries come again.
func (p *copier) copyBatch(batch []*broker.Delivery) error {
	until, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		begun := false
		err := p.t.Do(until, func(x *broker.Tx) error {
			begun = true
			for _, d := range batch {
				for i := range d.Events {
					x.Send(until, streamOut, p.output(d.Partition, &d.Events[i]))
				}
				x.Done(d)
			}
			return nil
		})
		switch {
		case err == nil:
			p.c.j.note("copied", len(batch))
			return nil
		case !errors.Is(err, broker.ErrAborted) || until.Err() != nil:
			return fmt.Errorf("copy: %w", err)
		}
		p.c.j.note("aborted", errors.Is(err, broker.ErrInDoubt), strconv.Quote(err.Error()))
		if begun {
			return nil
		}
	}
}

func (p *copier) output(partition int32, e *broker.Incoming) *broker.View {
	return &broker.View{ID: "copy-" + e.ID, Source: "/chaos/copy", Type: "chaos.copy", Subject: e.Subject, Data: []byte("y"),
		Extensions: []broker.Attribute{{Name: extPartition, Value: strconv.Itoa(int(partition))},
			{Name: extOffset, Value: strconv.FormatInt(e.Offset, 10)}}}
}
