package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

// envMemory is the memory for a scorer's models in bytes.
const envMemory = "TIDEMILL_CHAOS_MEMORY"

// storeFolder is the object store of a round.
const storeFolder = "store"

// score runs a scorer's process, wired like `tidemill serve scorer` except for the session. It
// starts when Kafka and Redis answer.
func (c *child) score(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(c.dir, configFile))
	if err != nil {
		return err
	}
	conf, err := config.Parse(configFile, text)
	if err != nil {
		return err
	}
	memory, err := strconv.ParseInt(os.Getenv(envMemory), 10, 64)
	if err != nil {
		return err
	}
	p, err := c.scorers(ctx, platform.Options{Config: conf, OwnStreams: true, Telemetry: &telemetry.Options{}, Logger: c.log,
		Addresses: config.Addresses{Kafka: c.addr, Redis: os.Getenv(envRedis), Store: filepath.Join(c.dir, storeFolder)},
		Scoring:   platform.ScoringOptions{Memory: memory, Dir: filepath.Join(c.dir, "models", c.name), SessionTimeout: session}})
	if err != nil {
		return err
	}
	c.j.note("ready")
	<-ctx.Done()
	until, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit-5*time.Second)
	defer cancel()
	return p.Close(until)
}

// scorers opens the scorers, and retries, because a server may be down again.
func (c *child) scorers(ctx context.Context, o platform.Options) (*platform.Platform, error) {
	for {
		p, err := platform.Open(ctx, o)
		if err == nil {
			if err = p.Scorers(ctx, ""); err == nil {
				return p, nil
			}
			err = errors.Join(err, p.Close(context.WithoutCancel(ctx)))
		}
		c.log.Info("not open yet", "reason", err)
		if wait(ctx, 50*time.Millisecond) != nil {
			return nil, fmt.Errorf("%w: %w", errEarly, err)
		}
	}
}

// hang leaves a transaction open on the output. It stays open until hang is killed and Kafka's
// timeout has passed.
func (c *child) hang(ctx context.Context) error {
	if c.life > 0 { // a producer of the same name would end the open transaction
		<-ctx.Done()
		return nil
	}
	b, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	x, err := b.Exclusive(ctx, "stranger", broker.ProducerOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", errEarly, err)
	}
	defer x.Close(context.WithoutCancel(ctx))
	err = x.Do(ctx, func(tx *broker.ExclusiveTx) error {
		for i := range int32(partitions) {
			tx.SendTo(ctx, streamOut, i, &broker.View{ID: "hanging", Source: sourceHere, Type: typeEvent, Subject: "nobody"}, nil)
		}
		c.j.note("hang")
		<-ctx.Done()
		return ctx.Err()
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
