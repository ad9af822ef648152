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

// triggersBench measures the dispatcher next to a bare client, and with dead subscribers next to
// its living one.
type triggersBench struct {
	*runner
	broker *childServer
	self   string

	matching matchCost
	// Results of each round: at full speed, and at the pace of the latency measurement.
	ours, bare         []serverMeasurement
	hop, alone, beside []arrivals
	parked             parkedEvents
}

func (r *runner) triggers(ctx context.Context, self string, broker *childServer) (*triggersBench, error) {
	t := &triggersBench{runner: r, broker: broker, self: self}
	var err error
	if t.matching, err = measureMatching(r.smoke); err != nil {
		return nil, err
	}
	turns := []func(context.Context) error{t.measureLiving, t.withDead, t.bareClient}
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

// measureLiving measures a dispatcher whose one trigger has a subscriber that answers.
func (t *triggersBench) measureLiving(ctx context.Context) error {
	return t.startSubscriber(ctx, false, func(l *childProcess, d *childServer) error {
		hop, err := t.paced(l, lapHop, t.turn)
		if err != nil {
			return err
		}
		paced, err := t.paced(l, lapPace, t.turn)
		if err != nil {
			return err
		}
		s, err := t.measureFlood(l, d, lapFlood)
		if err != nil {
			return err
		}
		t.hop, t.alone, t.ours = append(t.hop, hop), append(t.alone, paced), append(t.ours, s)
		return nil
	})
}

// withDead measures a living dispatcher with two dead subscribers of the same events.
func (t *triggersBench) withDead(ctx context.Context) error {
	return t.startSubscriber(ctx, true, func(l *childProcess, _ *childServer) error {
		paced, err := t.paced(l, lapPace, t.turn)
		t.beside = append(t.beside, paced)
		return err
	})
}

// startSubscriber starts a subscriber and its dispatcher on a new stream.
func (t *triggersBench) startSubscriber(ctx context.Context, dead bool, do func(l *childProcess, d *childServer) error) error {
	stream, err := t.streams.newStream(ctx)
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

func (t *triggersBench) startLap(ctx context.Context, stream string) (*childProcess, string, error) {
	arg, err := json.Marshal(lapTask{Kafka: t.addr, Stream: stream, Concurrency: atOnce})
	if err != nil {
		return nil, "", err
	}
	return startChild(ctx, []string{t.self, roleLap}, string(arg))
}

func (t *triggersBench) startDispatcher(ctx context.Context, what, config string) (*childServer, error) {
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

func (t *triggersBench) paced(l *childProcess, what string, last time.Duration) (a arrivals, err error) {
	return a, t.tell(l, what, last, &a)
}

func (t *triggersBench) tell(l *childProcess, what string, last time.Duration, result any) error {
	line, err := l.ask(fmt.Sprintf("%s %s", what, last))
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), result)
}

// measureFlood measures all processes while events are posted at full speed, after a while without
// measurement.
func (t *triggersBench) measureFlood(l *childProcess, by *childServer, what string) (s serverMeasurement, err error) {
	if err := t.tell(l, what, t.settle, &s.load); err != nil {
		return s, err
	}
	if err := errors.Join(t.broker.startMeasuring(), by.startMeasuring()); err != nil {
		return s, err
	}
	if err := t.tell(l, what, t.turn, &s.load); err != nil {
		return s, err
	}
	var errs [2]error
	s.server, errs[0] = by.stopMeasuring()
	s.broker, errs[1] = t.broker.stopMeasuring()
	return s, errors.Join(errs[:]...)
}

// bareClient measures the bare client, for comparison with the dispatcher.
func (t *triggersBench) bareClient(ctx context.Context) error {
	stream, err := t.streams.newStream(ctx)
	if err != nil {
		return err
	}
	l, addr, err := t.startLap(ctx, stream)
	if err != nil {
		return err
	}
	p, err := startServer(ctx, []string{t.self, rolePoster}, addr, fmt.Sprint(atOnce))
	if err == nil {
		var s serverMeasurement
		s, err = t.measureFlood(l, p, lapCount)
		t.bare = append(t.bare, s)
		err = errors.Join(err, p.stop())
	}
	return errors.Join(err, l.stop(), t.streams.remove(ctx, stream))
}
