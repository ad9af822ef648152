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

// serverMeasurement is the measurement of one generator and one server.
type serverMeasurement struct {
	load                  load.Result
	server, broker, cache task.Result
	metrics               metrics
}

// measureServer starts a server, posts to it, and checks that the stream has the events that the
// server acknowledged.
func (d *gatewayBench) measureServer(ctx context.Context, c *contender, t load.Task) (serverMeasurement, error) {
	d.run++
	stream, err := d.streams.newStream(ctx)
	if err != nil {
		return serverMeasurement{}, err
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

func (d *gatewayBench) post(ctx context.Context, c *contender, stream string, t load.Task) (serverMeasurement, error) {
	var args []string
	if c.stores {
		g, err := json.Marshal(gatewayTask{Kafka: d.addr, Redis: d.cache.addr, Stream: stream, Dedupe: d.dedupe, Profile: d.profile, What: loadName(t)})
		if err != nil {
			return serverMeasurement{}, err
		}
		args = []string{string(g)}
	}
	server, err := startServer(ctx, c.program, args...)
	if err != nil {
		return serverMeasurement{}, err
	}
	t.Addr = server.addrs[0]
	s, err := d.generate(ctx, server, c.stores, t)
	return s, errors.Join(err, server.stop())
}

// loadName returns the name of a load, for a profile's file name.
func loadName(t load.Task) string {
	switch {
	case t.Batch > 0:
		return "batches"
	case t.Rate > 0:
		return "paced"
	}
	return "single"
}

func (d *gatewayBench) generate(ctx context.Context, to *childServer, stores bool, t load.Task) (serverMeasurement, error) {
	arg, err := json.Marshal(t)
	if err != nil {
		return serverMeasurement{}, err
	}
	g, _, err := startChild(ctx, []string{d.self, roleLoad}, string(arg))
	if err != nil {
		return serverMeasurement{}, err
	}
	s, err := d.measureAll(ctx, to, g, stores)
	return s, errors.Join(err, g.stop())
}

// measureAll measures all processes while the generator measures.
func (d *gatewayBench) measureAll(ctx context.Context, to *childServer, g *childProcess, stores bool) (s serverMeasurement, err error) {
	var before metrics
	if stores {
		if before, err = scrape(ctx, to.addrs[0], ownSeconds, ackSeconds); err != nil {
			return s, err
		}
	}
	if err := errors.Join(d.broker.startMeasuring(), d.cache.meter(), to.startMeasuring()); err != nil {
		return s, err
	}
	line, err := g.ask("go")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(line), &s.load); err != nil {
		return s, fmt.Errorf("read what the generator measured: %w", err)
	}
	if err := d.collectMeasurements(&s, to); err != nil || !stores {
		return s, err
	}
	if s.metrics, err = scrape(ctx, to.addrs[0], ownSeconds, ackSeconds); err != nil {
		return s, err
	}
	for name, h := range s.metrics {
		s.metrics[name] = h.difference(before[name])
	}
	return s, nil
}

// collectMeasurements gets the measurements of all processes.
func (d *gatewayBench) collectMeasurements(s *serverMeasurement, to *childServer) error {
	var errs [3]error
	s.server, errs[0] = to.stopMeasuring()
	s.broker, errs[1] = d.broker.stopMeasuring()
	s.cache, errs[2] = d.cache.measured()
	return errors.Join(errs[:]...)
}

// onStream checks that the stream has as many events as were answered. Ids do not repeat, so no
// event is a duplicate.
func (d *gatewayBench) onStream(ctx context.Context, stream string, answered int) error {
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
