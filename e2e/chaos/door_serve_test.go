package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

// The environment variables of the children in a round of the gateway.
const (
	envRedis    = "TIDEMILL_CHAOS_REDIS"
	envGateways = "TIDEMILL_CHAOS_GATEWAYS" // addresses, separated by commas
)

const doorConfig = `version: 1
name: chaos
streams:
  in: {partitions: 6}
`

// redis runs Redis's process. The embedded server also has a Kafka, which is not used.
func (c *child) redis(ctx context.Context) error {
	s, err := embedded.Start(ctx, embedded.Options{Redis: os.Getenv(envRedis)})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errEarly, err)
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// drainFor is how long a gateway still answers after SIGTERM: long enough for clients with idle
// connections to notice.
const drainFor = 400 * time.Millisecond

// gateway runs a gateway's process, wired like `tidemill serve gateway`. It starts when Kafka
// answers.
func (c *child) gateway(ctx context.Context) error {
	conf, err := config.Parse("chaos", []byte(doorConfig))
	if err != nil {
		return err
	}
	var p *platform.Platform
	for p == nil {
		p, err = platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true, Telemetry: &telemetry.Options{}, Logger: c.log,
			Addresses: config.Addresses{Kafka: c.addr, Redis: os.Getenv(envRedis)}})
		if err != nil && wait(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%w: %w", errEarly, err)
		}
	}
	listen := strings.Split(os.Getenv(envGateways), ",")[c.index]
	g, err := p.Gateway(ctx, platform.GatewayOptions{Listen: listen, Limits: gateway.Limits{DrainDelay: drainFor}})
	if err != nil {
		return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.WithoutCancel(ctx)) }()
	select {
	case <-ctx.Done():
		return errors.Join(p.Close(context.WithoutCancel(ctx)), <-served)
	case err := <-served:
		return errors.Join(err, p.Close(ctx))
	}
}
