package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// letter is a place in a stream that could not be read as an event, on its way
// to the dead letters.
type letter struct {
	stream    string
	partition int32
	offset    int64
	last      int64 // where several offsets share one fate
	mark      int64 // the last of them that reading passes
	reason    error
	gap       bool // the records themselves are gone
	key       []byte
	value     []byte
	headers   []Header

	part   *inPartition
	epoch  uint64
	number uint64
}

// undecodable copies a record, because a letter outlives the fetched bytes.
func (d *Delivery) undecodable(first, last int64, r *wire.Record, reason error) letter {
	l := letter{stream: d.Stream, partition: d.Partition, offset: first, last: last, mark: last, reason: reason}
	if r == nil {
		return l
	}
	l.key, l.value = slices.Clone(r.Key), slices.Clone(r.Value)
	for _, h := range r.Headers {
		l.headers = append(l.headers, Header{Key: string([]byte(h.Key)), Value: slices.Clone(h.Value)})
	}
	return l
}

// bind makes the letter count among the events of its partition. Called with
// the partition's lock held.
func (l *letter) bind(p *inPartition, epoch uint64) {
	l.part, l.epoch = p, epoch
	l.number = p.mark.add(l.mark)
	p.unwritten++
}

// delivered lets the partition's offset move past the letter.
func (l *letter) delivered() {
	p := l.part
	p.mu.Lock()
	if p.epoch == l.epoch {
		p.mark.end(l.number)
		p.unwritten--
	}
	drained := p.draining && p.mark.open() == 0
	p.mu.Unlock()
	if drained && p.c.member != nil {
		p.c.member.nudge()
	}
}

// DeadLetter is the data of tidemill.event.dead-lettered for what could not
// even be read as an event.
type DeadLetter struct {
	Stream    string      `json:"stream"`
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Last      int64       `json:"lastOffset"` // the letter stands for offset to lastOffset
	Group     string      `json:"group"`
	Reason    string      `json:"reason"`
	Record    *DeadRecord `json:"record,omitempty"` // absent where nothing is left of it
}

// DeadRecord is a record as it lay on the log; bytes are base64 in JSON.
type DeadRecord struct {
	Key     []byte   `json:"key"`
	Value   []byte   `json:"value"`
	Headers []Header `json:"headers,omitempty"`
}

// deadLetters writes letters. A partition's offset does not pass a letter
// before it is written, so it tries until it succeeds or the consumer ends.
type deadLetters struct {
	c *Consumer
	p *Producer
}

// A letter holds its record in base64, so it may be larger than any event.
const maxLetter = 8 << 20

func newDeadLetters(c *Consumer) (*deadLetters, error) {
	p, err := c.b.Producer(ProducerOptions{MaxEvent: maxLetter, Compression: Zstd})
	return &deadLetters{c: c, p: p}, err
}

func (d *deadLetters) send(l letter) {
	v, err := d.event(l)
	if err != nil {
		d.c.fail(fmt.Errorf("write a dead letter for stream %s, partition %d, offset %d: %w", l.stream, l.partition, l.offset, err))
		return
	}
	d.c.b.log.Warn("dead letter", "stream", l.stream, "partition", l.partition, "offset", l.offset, "reason", l.reason)
	d.p.Send(d.c.ctx, tidemill.StreamDeadLetters, v, func(_ Receipt, err error) {
		switch {
		case err == nil:
			d.c.counts.deadLetters.Add(1)
			l.delivered()
		case d.c.ctx.Err() != nil || errors.Is(err, ErrClosed):
			// Its offset is not committed, so its successor writes it.
		case errors.Is(err, ErrTooLarge) && (l.key != nil || l.value != nil || l.headers != nil):
			l.key, l.value, l.headers = nil, nil, nil
			l.reason = fmt.Errorf("%w; the record itself is too large for the dead letters, read it where it lies", l.reason)
			d.c.running.Go(func() { d.send(l) })
		case errors.Is(err, ErrInDoubt):
			d.c.running.Go(func() { d.send(l) }) // the id derives from the place, so twice is once
		default:
			d.c.fail(fmt.Errorf("stream %s, partition %d, offset %d cannot be passed without its dead letter: %w", l.stream, l.partition, l.offset, err))
		}
	})
}

func (d *deadLetters) event(l letter) (*View, error) {
	data := DeadLetter{Stream: l.stream, Partition: l.partition, Offset: l.offset, Last: l.last, Group: d.c.opt.Group, Reason: l.reason.Error()}
	if !l.gap && (l.key != nil || l.value != nil || l.headers != nil) {
		data.Record = &DeadRecord{Key: l.key, Value: l.value, Headers: l.headers}
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	names := d.c.b.names
	return &View{
		ID:              tidemill.ID("dead-letter", d.c.opt.Group, l.stream, strconv.Itoa(int(l.partition)), strconv.FormatInt(l.offset, 10)),
		Source:          names.Source("broker"),
		Type:            tidemill.TypeEventDeadLettered,
		Time:            time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json",
		DataSchema:      tidemill.Schema(tidemill.TypeEventDeadLettered),
		Key:             l.key,
		Data:            raw,
	}, nil
}

func (d *deadLetters) close(ctx context.Context) error { return d.p.Close(ctx) }
