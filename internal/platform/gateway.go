package platform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/muster"
	"tidemill.dev/internal/repeats"
	"tidemill.dev/internal/standing"
	"tidemill.dev/internal/telemetry"
	"tidemill.dev/internal/web"
)

// GatewayOptions say where the door is and who may come in.
type GatewayOptions struct {
	Listen            string // host:port; port 0 is a free one
	CertFile, KeyFile string // PEM; empty is plain HTTP
	AccessFile        string // who may do what; empty is everybody, on loopback alone
	Limits            web.Limits
}

// The gateway must hear from its producer that an event failed before its own
// patience ends, or it could only say that it does not know.
const (
	ackWithin     = 30 * time.Second
	publishWithin = 25 * time.Second
)

// Gateway opens the HTTP door on top of Kafka, Redis and the config. Nobody is
// answered before its Serve; the stop order closes it. The platform must have
// been opened with Telemetry.
func (p *Platform) Gateway(ctx context.Context, o GatewayOptions) (*web.Gateway, error) {
	if p.telemetry == nil {
		return nil, errors.New("open the gateway: the platform was opened without telemetry")
	}
	if o.Limits.Ack == 0 {
		o.Limits.Ack = ackWithin
	}
	producer, err := p.gatewayProducer(o.Limits)
	if err != nil {
		return nil, err
	}
	memory, err := p.openRepeats()
	if err != nil {
		return nil, err
	}
	p.recallRepeats(ctx, memory)
	guard, err := p.openAccess(ctx, o.AccessFile)
	if err != nil {
		return nil, err
	}
	wo := web.Options{
		Listen: o.Listen, CertFile: o.CertFile, KeyFile: o.KeyFile,
		Config: p.Config, Broker: p.broker, Producer: producer,
		Repeats: memory, Standing: standing.NewBoard(p.redis, p.names, p.kafka), Access: guard, Telemetry: p.telemetry,
		Scorers: standing.NewScorers(p.redis, p.names, p.kafka),
		Ready:   p.Ready, Limits: o.Limits, Logger: p.log, Version: p.version,
	}
	if w := p.works; w != nil {
		wo.Warm, wo.Muster = p.warm, muster.NewRoll(p.redis, p.names, p.kafka)
		wo.Runs, wo.Ledger, wo.Store, wo.Tokens, wo.Announce, wo.Inside = w.foreman, w.ledger, w.store, w.tokens, p.announce, w.inside
		wo.Models, wo.Forgetter = w.models, w.forgetter
		if w.local != nil {
			wo.GPUs, wo.Slots = w.local.GPUs, w.local.Slots
		}
	}
	if p.canScore() {
		wo.Score, wo.Rescore, wo.Inference = p.scoreOnce, p.rescore, p.inference()
	}
	g, err := web.Open(ctx, wo)
	if err != nil {
		return nil, err
	}
	p.AtStop(Doors, "the HTTP door", g.Close)
	return g, nil
}

func (p *Platform) gatewayProducer(l web.Limits) (*broker.Producer, error) {
	producer, err := p.Producer(broker.ProducerOptions{Timeout: min(publishWithin, l.Ack*5/6), MaxEvent: l.Event})
	if err != nil {
		return nil, err
	}
	return producer, p.measure(telemetry.Producer("gateway", producer), telemetry.Streams(p.broker, p.log))
}

func (p *Platform) measure(collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := p.telemetry.Registry().Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// openRepeats gives nil without Redis. It is closed after the producers: what
// they still acknowledge is still marked.
func (p *Platform) openRepeats() (*repeats.Memory, error) {
	memory, err := repeats.Open(repeats.Options{Redis: p.redis, Names: p.names, Kafka: p.kafka, Registerer: p.telemetry.Registry(), Logger: p.log})
	if err != nil {
		return nil, fmt.Errorf("open the memory of repeats: %w", err)
	}
	p.mu.Lock()
	p.repeats = memory
	p.mu.Unlock()
	if memory != nil {
		p.AtStop(clients, "the memory of repeats", memory.Close)
	}
	return memory, nil
}

// openAccess gives nil without a file: the open door.
func (p *Platform) openAccess(ctx context.Context, file string) (*access.Guard, error) {
	if file == "" {
		return nil, nil
	}
	guard, err := access.Open(ctx, file, access.Options{Logger: p.log})
	if err != nil {
		return nil, fmt.Errorf("read who has access: %w", err)
	}
	p.AtStop(Doors, "the access file", guard.Close)
	return guard, nil
}
