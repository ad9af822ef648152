package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/triggers/deliver"
)

// dispatch runs a dispatcher's process, wired like `tidemill serve dispatcher` except for the
// session. It starts when Kafka answers.
func (c *child) dispatch(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(c.dir, configFile))
	if err != nil {
		return err
	}
	conf, err := config.Parse(configFile, text)
	if err != nil {
		return err
	}
	p, err := c.platform(ctx, conf)
	if err != nil {
		return err
	}
	d, err := c.dispatcher(ctx, p)
	if err != nil && ctx.Err() == nil {
		return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	if err == nil && d.Ready(ctx) == nil {
		c.j.note("ready")
	}
	for err == nil && wait(ctx, 50*time.Millisecond) == nil {
		c.j.note("underway", underWay(d))
	}
	<-ctx.Done()
	until, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit-5*time.Second)
	defer cancel()
	return p.Close(until)
}

// underWay returns how many events are parked or in an attempt, plus one for each trigger that has
// not begun on every partition.
func underWay(d *deliver.Dispatcher) (n int64) {
	for _, s := range d.Standing() {
		if n += s.Parked + s.InFlight; s.Starting {
			n++
		}
	}
	return n
}

// dispatcher opens a dispatcher, and retries, because the broker may be down again.
func (c *child) dispatcher(ctx context.Context, p *platform.Platform) (*deliver.Dispatcher, error) {
	for {
		d, err := deliver.Open(ctx, deliver.Options{Broker: p.Broker(), Config: p.Config(), Logger: c.log, SessionTimeout: session})
		if err == nil {
			p.AtStop(platform.Consumers, "the dispatcher", d.Close)
			return d, nil
		}
		if wait(ctx, 50*time.Millisecond) != nil {
			return nil, fmt.Errorf("%w: %w", errEarly, err)
		}
	}
}

// platform opens a platform on the broker, and retries while the broker is down.
func (c *child) platform(ctx context.Context, conf *config.Config) (*platform.Platform, error) {
	for {
		p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true, Telemetry: &telemetry.Options{}, Logger: c.log,
			Addresses: config.Addresses{Kafka: c.addr}})
		if err == nil {
			return p, nil
		}
		if wait(ctx, 50*time.Millisecond) != nil {
			return nil, fmt.Errorf("%w: %w", errEarly, err)
		}
	}
}
