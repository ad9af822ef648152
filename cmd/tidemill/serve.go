package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/telemetry"
)

// roles are what serve can be. Later issues add to them.
func roles() []string { return []string{"gateway"} }

func serveCommand() command {
	return command{
		name:    "serve",
		args:    "ROLE",
		summary: "run one part of Tidemill against a Kafka and a Redis of yours",
		about: `The role gateway is the HTTP door: other systems publish events through it, and
look at streams. Any number of replicas may run. It creates the streams of its
config, applies the file again whenever it changes, and is ready (/readyz) while
Kafka is. Without Redis repeats are not recognised.

Without --access everybody may everything, so it listens on loopback alone.`,
		examples: []example{
			{"tidemill serve gateway -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:8080 --access access.yaml", "a replica"},
			{"tidemill serve gateway --kafka localhost:9092", "the door alone, on this machine"},
		},
		make: func() program { return &serving{door: doorFlags{listen: listenAt, drain: 5 * time.Second}} },
	}
}

// serving is a call of serve.
type serving struct {
	connection
	door    doorFlags
	reorder bool
}

func (r *serving) flags(f *flagSet) {
	r.door.flags(f)
	f.yes(&r.reorder, "reorder", "let streams grow partitions though keys then move between them")
	r.connection.flags(f)
}

func (r *serving) accept(positional []string) error {
	if err := wants(positional, "ROLE"); err != nil {
		return usagef("%v; the roles: %s", err, strings.Join(roles(), ", "))
	}
	if positional[0] != "gateway" {
		return usagef("there is no role %q:%s those there are: %s", positional[0], didYouMean(positional[0], roles()), strings.Join(roles(), ", "))
	}
	return r.door.accept()
}

func (r *serving) run(ctx context.Context, s *session, _ []string) error {
	addresses, err := config.ReadAddresses(r.addresses, s.getenv)
	if err != nil {
		return err
	}
	if addresses.Kafka == "" {
		return usagef("Kafka's address is missing: give --kafka or set TIDEMILL_KAFKA; tidemill up brings a Kafka of its own")
	}
	log, err := r.logger(s.stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	if err := r.door.check(); err != nil {
		return err
	}
	if addresses.Redis == "" {
		log.Warn("no Redis is given (--redis), so repeats are not recognised and are stored again")
	}
	source := r.source()
	conf, err := source.load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	began := time.Now()
	p, err := platform.Open(ctx, platform.Options{Config: conf, Addresses: addresses, Security: r.security,
		OwnStreams: true, Reorder: r.reorder, Telemetry: telemetryOf(s, "tidemill-gateway"), Logger: log})
	if err != nil {
		return unlessInterrupted(ctx, log, fmt.Errorf("start: %w", err))
	}
	return stay(ctx, p, log, source, func(ctx context.Context) error { return unlessInterrupted(ctx, log, r.open(ctx, s, p, source, began)) })
}

// unlessInterrupted is no error where a start was asked to stop, and has: its
// error blames whatever it happened to wait for, and not always by the context.
func unlessInterrupted(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	log.Info("interrupted before it was up")
	log.Debug("what the interrupted start met", "reason", err)
	return nil
}

func (r *serving) open(ctx context.Context, s *session, p *platform.Platform, source *configSource, began time.Time) error {
	g, err := r.door.open(ctx, p)
	if err != nil {
		return err
	}
	a := p.Addresses()
	fmt.Fprintf(s.stdout, "tidemill's gateway is up after %s, with %d streams\n", time.Since(began).Round(time.Millisecond), len(p.Config().Streams))
	fmt.Fprintf(s.stdout, "  http    %s\n  kafka   %s\n  redis   %s\n  config  %s\n", r.door.url(g), a.Kafka, orNone(a.Redis), source.shown())
	return serve(ctx, g)
}

// stay keeps the config applied and the platform open while something serves,
// and stops it all in the stop order.
func stay(ctx context.Context, p *platform.Platform, log *slog.Logger, source *configSource, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() {
		cancel()
		watching.Wait()
		log.Info("stopping")
		err = errors.Join(err, closePlatform(ctx, p))
	}()
	watching.Go(func() { p.Watch(ctx, source.load, configEvery) })
	return do(ctx)
}

func telemetryOf(s *session, service string) *telemetry.Options {
	return &telemetry.Options{Version: thisBuild().Version, Getenv: s.getenv, Name: service}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
