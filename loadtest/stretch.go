package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/task"
)

// The gateway's histograms of its own part of an answer's time, and of the broker's part.
const (
	ownSeconds = "tidemill_gateway_own_seconds"
	ackSeconds = "tidemill_gateway_ack_seconds"
)

// stretch is the measurement of one generator and one server.
type stretch struct {
	load                  load.Result
	server, broker, cache task.Result
	metrics               metrics
}

// stretch starts a server, posts to it, and checks that the stream has the events that it answered
// for.
func (d *door) stretch(ctx context.Context, c *contender, t load.Task) (stretch, error) {
	d.run++
	stream, err := d.streams.fresh(ctx)
	if err != nil {
		return stretch{}, err
	}
	t.Path, t.Run = "/streams/"+stream, fmt.Sprintf("b7gk2m%04d", d.run)
	t.Connections, t.Warm, t.Last = d.connections, d.settle, d.turn
	if t.Batch > 0 {
		t.Connections = batchConnections
	}
	s, err := d.post(ctx, c, stream, t)
	if err == nil && c.stores {
		err = d.onStream(ctx, stream, s.load.Answered)
	}
	return s, errors.Join(err, d.streams.remove(ctx, stream))
}

func (d *door) post(ctx context.Context, c *contender, stream string, t load.Task) (stretch, error) {
	var args []string
	if c.stores {
		g, err := json.Marshal(gatewayTask{Kafka: d.addr, Redis: d.cache.addr, Stream: stream, Dedupe: d.dedupe, Profile: d.profile, What: what(t)})
		if err != nil {
			return stretch{}, err
		}
		args = []string{string(g)}
	}
	server, err := startServer(ctx, c.program, args...)
	if err != nil {
		return stretch{}, err
	}
	t.Addr = server.addrs[0]
	s, err := d.generate(ctx, server, c.stores, t)
	return s, errors.Join(err, server.stop())
}

// what returns a word for a load, for a profile's name.
func what(t load.Task) string {
	switch {
	case t.Batch > 0:
		return "batches"
	case t.Rate > 0:
		return "paced"
	}
	return "single"
}

func (d *door) generate(ctx context.Context, to *server, stores bool, t load.Task) (stretch, error) {
	arg, err := json.Marshal(t)
	if err != nil {
		return stretch{}, err
	}
	g, _, err := startChild(ctx, []string{d.self, roleLoad}, string(arg))
	if err != nil {
		return stretch{}, err
	}
	s, err := d.measured(ctx, to, g, stores)
	return s, errors.Join(err, g.stop())
}

// measured measures all processes while the generator measures.
func (d *door) measured(ctx context.Context, to *server, g *child, stores bool) (s stretch, err error) {
	var before metrics
	if stores {
		if before, err = scrape(ctx, to.addrs[0], ownSeconds, ackSeconds); err != nil {
			return s, err
		}
	}
	if err := errors.Join(d.broker.meter(), d.cache.meter(), to.meter()); err != nil {
		return s, err
	}
	line, err := g.ask("go")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(line), &s.load); err != nil {
		return s, fmt.Errorf("read what the generator measured: %w", err)
	}
	if err := d.collect(&s, to); err != nil || !stores {
		return s, err
	}
	if s.metrics, err = scrape(ctx, to.addrs[0], ownSeconds, ackSeconds); err != nil {
		return s, err
	}
	for name, h := range s.metrics {
		s.metrics[name] = h.since(before[name])
	}
	return s, nil
}

// collect gets the measurements of all processes.
func (d *door) collect(s *stretch, to *server) error {
	var errs [3]error
	s.server, errs[0] = to.measured()
	s.broker, errs[1] = d.broker.measured()
	s.cache, errs[2] = d.cache.measured()
	return errors.Join(errs[:]...)
}

// onStream checks that the stream has as many events as were answered. Ids do not repeat, so no
// event is a duplicate.
func (d *door) onStream(ctx context.Context, stream string, answered int) error {
	ends, err := d.streams.b.Ends(ctx, stream)
	if err != nil {
		return err
	}
	stored := int64(0)
	for _, e := range ends {
		stored += e.Offset
	}
	if stored != int64(answered) {
		return fmt.Errorf("%d events were answered with 202, and %d are on the stream", answered, stored)
	}
	return nil
}
