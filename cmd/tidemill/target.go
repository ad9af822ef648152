package main

import (
	"context"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
	"tidemill.dev/triggers/match"
)

// target is what the commands publish to and read from. There are two: a
// gateway, and Kafka itself for who stands beside it. An empty stream is the
// home of an event's type.
type target interface {
	worry() worry // about an answer of its

	publish(ctx context.Context, stream string, v *broker.View) (remote.Receipt, error)
	// send is for many events. It copies what it is given; done is called once
	// and must not block.
	send(ctx context.Context, stream string, v *broker.View, done func(remote.Receipt, error))
	// flush waits until all that was sent has its answer.
	flush(ctx context.Context) error

	// follow calls each with the wanted events of a stream until one call fails, which is
	// the error, or until the end, where there is one.
	follow(ctx context.Context, o following, each func(*tail.Event) error) error
	streams(ctx context.Context) ([]api.Stream, error)

	close(ctx context.Context) error
}

// following says what to read.
type following struct {
	stream string
	start  broker.Start
	toEnd  bool
	where  *match.Filter // nil is every event
	limit  int           // more are not wanted, for whoever can make use of that; 0 is no limit
	begun  func()        // called when reading has begun
}

// wants judges an event. What is no event matches no filter and is no reason for
// silence either.
func (o *following) wants(e *tail.Event) bool {
	return o.where == nil || e.Err != nil || o.where.Match(&e.View)
}
