package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/platform"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/scenario"
)

// scoreBench is the environment of a scenario: a broker in its own process, a store with the
// models, facts that name the champions, and a stream of events.
type scoreBench struct {
	scorePlan
	*scenario.Scenario
	built  contenders
	fleet  fleet.Fleet
	folder string
	server *childServer
	kafka  *realservers.Kafka // nil if the broker is the embedded one
	st     *streams
	store  *store.Store
	facts  *broker.Producer
	model  string // file of the only model, if it is not a generated network
	places *offsetEvents
	rounds int // number of rounds so far, for names
}

// The streams of the scenario.
const inStream = "in"

func outStream(round int) string { return fmt.Sprintf("out-%d", round) }

func openWorld(ctx context.Context, p scorePlan, s *scenario.Scenario, built contenders, folder string) (w *scoreBench, err error) {
	w = &scoreBench{scorePlan: p, Scenario: s, built: built, fleet: s.Fleet(), folder: folder}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	if err := w.open(ctx); err != nil {
		return nil, errors.Join(err, w.close(ctx))
	}
	return w, nil
}

func (w *scoreBench) open(ctx context.Context) (err error) {
	if w.server, err = startServer(ctx, []string{w.self, roleServe}, filepath.Join(w.folder, "servers")); err != nil {
		return err
	}
	if w.Measure == scenario.Peers {
		if err := w.startKafka(ctx); err != nil {
			return err
		}
	}
	if err := w.makeStreams(ctx); err != nil {
		return err
	}
	if w.st, err = openStreams(ctx, w.server.addrs[0]); err != nil {
		return err
	}
	if w.store, err = store.Open(ctx, store.Options{URL: w.storeURL()}); err != nil {
		return err
	}
	w.facts, err = w.st.b.Producer(broker.ProducerOptions{})
	return err
}

// makeStreams makes the platform create the streams of an install.
func (w *scoreBench) makeStreams(ctx context.Context) error {
	conf, err := config.Parse("the load test's config", []byte(w.scorerConfig(0, false)))
	if err != nil {
		return err
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true, Addresses: w.addresses()})
	if err != nil {
		return err
	}
	return p.Close(ctx)
}

func (w *scoreBench) storeURL() string { return filepath.Join(w.folder, "store") }

func (w *scoreBench) addresses() config.Addresses {
	return config.Addresses{Kafka: w.server.addrs[0], Redis: w.server.addrs[1], Store: w.storeURL()}
}

// scorerConfig returns a config of one scorer, with the group and the output of one round.
func (w *scoreBench) scorerConfig(round int, atLeastOnce bool) string {
	delivery := "exactly-once"
	if atLeastOnce {
		delivery = "at-least-once"
	}
	recipes := ""
	if w.Measure == scenario.Trial {
		recipes = `recipes:
  load: {when: {type: never}, run: {dir: ., command: ["true"]}, makes: {model: "load/{key}"}, trial: {pass: [stream.errors > 1000000]}}
`
	}
	return fmt.Sprintf(`version: 1
streams:
  %[1]s: {partitions: %[2]d}
  %[3]s: {partitions: %[2]d}
scorers:
  %[4]s: {from: %[1]s, to: %[3]s, model: "load/{key}", delivery: %[5]s, batch: {events: %[6]d}}
`+recipes, inStream, partitions, outStream(round), scorerName(round), delivery, max(1, w.Batch))
}

func scorerName(round int) string { return fmt.Sprintf("load-%d", round) }

func (w *scoreBench) close(ctx context.Context) error {
	var errs []error
	if w.facts != nil {
		errs = append(errs, w.facts.Close(ctx))
	}
	if w.store != nil {
		errs = append(errs, w.store.Close())
	}
	if w.st != nil {
		errs = append(errs, w.st.b.Close())
	}
	if w.server != nil {
		errs = append(errs, w.server.stop())
	}
	if w.kafka != nil {
		errs = append(errs, w.kafka.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(w.folder))...)
}

func topicOf(w *scoreBench, stream string) string { return w.st.names.Topic(stream) }
