package clock

import (
	"context"
	"errors"
	"fmt"
	"io"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/tail"
)

// Read reads how far the schedules have come, from the newest full mark on.
func Read(ctx context.Context, b *broker.Broker) (*Book, error) {
	at, err := b.Committed(ctx, reader, []broker.Position{{Stream: tidemill.StreamClock}})
	if err != nil {
		return nil, fmt.Errorf("find the newest full mark of the schedules: %w", err)
	}
	from := max(0, at[0].Offset)
	book, err := readFrom(ctx, b, from)
	if err == nil && !book.whole && from > 0 {
		// The place is of another stream of this name, or is gone.
		return readFrom(ctx, b, 0)
	}
	return book, err
}

func readFrom(ctx context.Context, b *broker.Broker, offset int64) (book *Book, err error) {
	r, err := tail.Open(ctx, b, tail.Options{Stream: tidemill.StreamClock, Resume: tail.Place{offset}, ToEnd: true})
	if err != nil {
		return nil, fmt.Errorf("read how far the schedules have come: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	book = &Book{}
	for {
		events, err := r.Next(ctx)
		if err == io.EOF {
			return book, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read how far the schedules have come: %w", err)
		}
		for i := range events {
			book.take(&events[i])
		}
	}
}

// take reads one record of the stream.
func (b *Book) take(e *tail.Event) {
	err := e.Err
	if err == nil && e.Type == tidemill.TypeClockMarked {
		err = b.read(e.Data)
	}
	if err != nil {
		b.gaps = append(b.gaps, fmt.Errorf("offset %d: %w", e.Offset, err))
	}
}
