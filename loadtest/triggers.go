package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
)

// atOnce is the number of concurrent requests, for a dispatcher and for the bare client. It is a
// trigger's default.
const atOnce = 32

// triggers measures the dispatcher next to a bare client, and with dead subscribers next to its
// living one.
type triggers struct {
	*runner
	broker *server
	self   string

	matching matching
	// Results of each round: at full speed, and at the pace of the latency measurement.
	ours, bare         []stretch
	hop, alone, beside []arrivals
	parked             parkedEvents
}

func (r *runner) triggers(ctx context.Context, self string, broker *server) (*triggers, error) {
	t := &triggers{runner: r, broker: broker, self: self}
	var err error
	if t.matching, err = measureMatching(r.smoke); err != nil {
		return nil, err
	}
	turns := []func(context.Context) error{t.living, t.withDead, t.bareClient}
	for range r.plan.rounds {
		for _, turn := range turns {
			if err := turn(ctx); err != nil {
				return nil, fmt.Errorf("measure triggers: %w", err)
			}
		}
		turns = append(turns[1:], turns[0])
	}
	t.parked, err = t.park(ctx)
	return t, err
}

// living measures a dispatcher whose one trigger has a subscriber that answers.
func (t *triggers) living(ctx context.Context) error {
	return t.lap(ctx, false, func(l *child, d *server) error {
		hop, err := t.paced(l, lapHop, t.turn)
		if err != nil {
			return err
		}
		paced, err := t.paced(l, lapPace, t.turn)
		if err != nil {
			return err
		}
		s, err := t.flood(l, d, lapFlood)
		if err != nil {
			return err
		}
		t.hop, t.alone, t.ours = append(t.hop, hop), append(t.alone, paced), append(t.ours, s)
		return nil
	})
}

// withDead measures the same with two dead subscribers of the same events.
func (t *triggers) withDead(ctx context.Context) error {
	return t.lap(ctx, true, func(l *child, _ *server) error {
		paced, err := t.paced(l, lapPace, t.turn)
		t.beside = append(t.beside, paced)
		return err
	})
}

// lap starts a subscriber and its dispatcher on a new stream.
func (t *triggers) lap(ctx context.Context, dead bool, do func(l *child, d *server) error) error {
	stream, err := t.streams.fresh(ctx)
	if err != nil {
		return err
	}
	l, addr, err := t.startLap(ctx, stream)
	if err != nil {
		return err
	}
	d, err := t.startDispatcher(ctx, "triggers", loadConfig(stream, addr, dead))
	if err == nil {
		if _, err = t.paced(l, lapPace, t.settle); err == nil {
			err = do(l, d)
		}
		err = errors.Join(err, d.stop())
	}
	return errors.Join(err, l.stop(), t.streams.remove(ctx, stream), t.streams.remove(ctx, tidemill.Parked(stream)))
}

func (t *triggers) startLap(ctx context.Context, stream string) (*child, string, error) {
	arg, err := json.Marshal(lapTask{Kafka: t.addr, Stream: stream, Concurrency: atOnce})
	if err != nil {
		return nil, "", err
	}
	return startChild(ctx, []string{t.self, roleLap}, string(arg))
}

func (t *triggers) startDispatcher(ctx context.Context, what, config string) (*server, error) {
	arg, err := json.Marshal(dispatcherTask{Kafka: t.addr, Config: config, Profile: t.profile, What: what})
	if err != nil {
		return nil, err
	}
	return startServer(ctx, []string{t.self, roleDispatcher}, string(arg))
}

// loadConfig returns a dispatcher's config. No server listens at the port of the dead subscriber
// that refuses.
func loadConfig(stream, addr string, dead bool) string {
	text := fmt.Sprintf("version: 1\nstreams: {%s: {partitions: %d, types: [new-data]}}\ntriggers:\n", stream, partitions)
	trigger := func(name, url string) {
		text += fmt.Sprintf("  %s: {when: {type: new-data}, to: {url: %q}, delivery: {concurrency: %d}}\n", name, url, atOnce)
	}
	if addr != "" {
		trigger("living", "http://"+addr+pathEvents)
	}
	if dead {
		trigger("refusing", "http://127.0.0.1:9/")
	}
	if dead && addr != "" {
		trigger("hanging", "http://"+addr+pathHang)
	}
	return text
}

func (t *triggers) paced(l *child, what string, last time.Duration) (a arrivals, err error) {
	return a, t.tell(l, what, last, &a)
}

func (t *triggers) tell(l *child, what string, last time.Duration, result any) error {
	line, err := l.ask(fmt.Sprintf("%s %s", what, last))
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), result)
}

// flood measures all processes while events are posted at full speed, after a while without
// measurement.
func (t *triggers) flood(l *child, by *server, what string) (s stretch, err error) {
	if err := t.tell(l, what, t.settle, &s.load); err != nil {
		return s, err
	}
	if err := errors.Join(t.broker.meter(), by.meter()); err != nil {
		return s, err
	}
	if err := t.tell(l, what, t.turn, &s.load); err != nil {
		return s, err
	}
	var errs [2]error
	s.server, errs[0] = by.measured()
	s.broker, errs[1] = t.broker.measured()
	return s, errors.Join(errs[:]...)
}

// bareClient measures the bare client, for comparison with the dispatcher.
func (t *triggers) bareClient(ctx context.Context) error {
	stream, err := t.streams.fresh(ctx)
	if err != nil {
		return err
	}
	l, addr, err := t.startLap(ctx, stream)
	if err != nil {
		return err
	}
	p, err := startServer(ctx, []string{t.self, rolePoster}, addr, fmt.Sprint(atOnce))
	if err == nil {
		var s stretch
		s, err = t.flood(l, p, lapCount)
		t.bare = append(t.bare, s)
		err = errors.Join(err, p.stop())
	}
	return errors.Join(err, l.stop(), t.streams.remove(ctx, stream))
}
