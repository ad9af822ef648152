package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// lookForKafka is how often a tail on which nothing comes looks whether Kafka is
// there.
const lookForKafka = 5 * time.Second

// pingWithin bounds how long Kafka may take to say that it is there.
const pingWithin = 3 * time.Second

// absence tells a stream on which nothing happens from a Kafka that is away:
// the consumer waits for it without a word, and would for ever.
type absence struct {
	out  io.Writer
	ping func(context.Context) error
	told bool

	looked time.Time
}

// look says once that Kafka has gone, and once that it is back.
func (a *absence) look(ctx context.Context) {
	if time.Since(a.looked) < lookForKafka {
		return
	}
	defer func() { a.looked = time.Now() }()
	limited, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	err := a.ping(limited)
	switch {
	case ctx.Err() != nil || (err != nil) == a.told:
		return
	case err != nil:
		fmt.Fprintf(a.out, "Kafka does not answer, and tail goes on when it does: %v\n", err)
	default:
		fmt.Fprintln(a.out, "Kafka is back.")
	}
	a.told = err != nil
}
