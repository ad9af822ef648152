package main

import (
	"context"
	"fmt"
	"io"
	"net"

	"tidemill.dev/loadtest/internal/task"
)

// hop measures the time from write to read of a message of an event's size, over one loopback
// connection and at the same pace. This time is the lower bound for every latency here, and shows
// whether the machine is busy with other work.
func hop(ctx context.Context, n int) (sample, error) {
	from, to, err := loopback(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure a loopback hop: %w", err)
	}
	defer from.Close()
	defer to.Close()
	sent, took := newStamps(n), make(sample, n)
	read := make(chan error, 1)
	go func() {
		message := make([]byte, task.DataBytes)
		for i := range n {
			if _, err := io.ReadFull(to, message); err != nil {
				read <- err
				return
			}
			took[i] = sent.since(i)
		}
		read <- nil
	}()
	message := make([]byte, task.DataBytes)
	if err := callAtRate(ctx, n, func(i int) error {
		sent.left(i)
		_, err := from.Write(message)
		return err
	}); err != nil {
		return nil, err
	}
	return took.sorted(), <-read
}

func loopback(ctx context.Context) (from, to net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var d net.Dialer
	if from, err = d.DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if to, err = l.Accept(); err != nil {
		from.Close()
	}
	return from, to, err
}
