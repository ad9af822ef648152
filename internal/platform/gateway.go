package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/functions/outcomes"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/runs/rendezvous"
	"tidemill.dev/internal/scoring/oip/protobuf"
)

// GatewayOptions configure the gateway's listener and its access control.
type GatewayOptions struct {
	Listen            string // host:port; port 0 for a free port
	ListenGRPC        string // host:port for gRPC; empty for none
	CertFile, KeyFile string // PEM files; if empty, plain HTTP
	AccessFile        string // file with the rights of callers; if empty, all callers have all rights, on loopback only
	Limits            gateway.Limits
}

// The producer's timeout must be shorter than the gateway's, so that the gateway can report a
// failure. Otherwise the gateway could only answer that the result is unknown.
const (
	ackWithin     = 30 * time.Second
	publishWithin = 25 * time.Second
)

// Gateway opens the HTTP server. Requests are answered only after Serve. The stop order closes the
// server. The platform must have been opened with Telemetry.
func (p *Platform) Gateway(ctx context.Context, o GatewayOptions) (*gateway.Gateway, error) {
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
	wo := gateway.Options{
		Listen: o.Listen, ListenGRPC: o.ListenGRPC, Network: p.network, CertFile: o.CertFile, KeyFile: o.KeyFile,
		Config: p.Config, Broker: p.broker, Producer: producer,
		Repeats: memory, Standing: status.NewBoard(p.redis, p.names, p.kafka), Access: guard, Telemetry: p.telemetry,
		Rollouts: status.NewRollouts(p.redis, p.names, p.kafka), Trials: status.NewTrials(p.redis, p.names, p.kafka),
		Scorers: status.NewScorers(p.redis, p.names, p.kafka), Fresh: status.NewFreshness(p.redis, p.names, p.kafka), History: status.NewHistory(p.redis, p.names, p.kafka, p.log),
		Ready: p.Ready, Full: p.fullness(), Limits: o.Limits, Logger: p.log, Version: p.version,
	}
	if w := p.works; w != nil {
		w.gateway.Store(true)
		wo.Warm, wo.Muster = p.warm, rendezvous.NewRoll(p.redis, p.names, p.kafka)
		wo.Runs, wo.Ledger, wo.Store, wo.Tokens, wo.Announce, wo.Inside = w.foreman, w.ledger, w.store, w.tokens, p.publishCommit, w.inside
		wo.Models, wo.Forgetter = w.models, w.forgetter
		if w.local != nil {
			wo.GPUs, wo.Slots = w.local.GPUs, w.local.Slots
		}
	}
	if p.canScore() {
		wo.Score, wo.Rescore, wo.Replay, wo.Rejudge = p.scoreOnce, p.rescorePart, p.replayLetters, p.judgeAgain
		wo.Inference, wo.InferenceGRPC = p.inferenceHandler().Serve, protobuf.New(p.inferenceServer())
	}
	g, err := gateway.Open(ctx, wo)
	if err != nil {
		return nil, err
	}
	p.AtStop(Doors, "the gateway", g.Close)
	p.recordHistory(ctx, wo.History, g)
	return g, nil
}

// recordHistory samples the numbers of the last two hours. The gateways do it: they read the same numbers for their
// answers, and a page with a history needs a gateway anyway. So the history goes on while the controller or the
// dispatchers are down.
func (p *Platform) recordHistory(ctx context.Context, h *status.History, g *gateway.Gateway) {
	p.untilStop(ctx, Doors, "the history", func(ctx context.Context) { h.Record(ctx, g.Figures) })
}

func (p *Platform) gatewayProducer(l gateway.Limits) (*broker.Producer, error) {
	producer, err := p.Producer(broker.ProducerOptions{Timeout: min(publishWithin, l.Ack*5/6), MaxEvent: l.Event})
	if err != nil {
		return nil, err
	}
	return producer, p.measure(telemetry.Producer("gateway", producer), telemetry.Streams(p.broker, p.reads, p.log))
}

// reads reports whether a part of the config reads by a consumer group. Only groups of scorers have the name of a part.
func (p *Platform) reads(group string) bool {
	if name, is := strings.CutPrefix(group, score.Group("")); is {
		_, ok := p.Config().Scorer(name)
		return ok
	}
	if name, is := strings.CutPrefix(group, outcomes.Group("")); is {
		s, ok := p.Config().Scorer(name)
		return ok && s.Labels != nil
	}
	return true
}

func (p *Platform) measure(collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := p.telemetry.Registry().Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// openRepeats opens the memory of repeats; nil without Redis. The memory is closed after the
// producers, because their last acknowledgements still mark events in it.
func (p *Platform) openRepeats() (*dedupe.Memory, error) {
	memory, err := dedupe.Open(dedupe.Options{Redis: p.redis, Names: p.names, Kafka: p.kafka, Registerer: p.telemetry.Registry(), Logger: p.log})
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

// openAccess opens the access file. Without a file the result is nil, and all callers have all
// rights.
func (p *Platform) openAccess(ctx context.Context, file string) (*access.Guard, error) {
	if file == "" {
		return nil, nil
	}
	guard, err := access.Open(ctx, file, access.Options{Logger: p.log})
	if err != nil {
		return nil, fmt.Errorf("read the access file: %w", err)
	}
	p.AtStop(Doors, "the access file", guard.Close)
	return guard, nil
}

// recallWithin limits the time that recallRepeats takes at a start.
const recallWithin = 10 * time.Second

// recallMost is the number of events of a stream that are read. The newest are read, because they
// are the most likely to be repeated.
const recallMost = 1_000_000

// recallRepeats fills the memory of repeats from the log when a gateway starts, for streams that
// Redis does not know. A laptop's Redis does not keep these streams when it stops, and any Redis may lose data.
func (p *Platform) recallRepeats(ctx context.Context, memory *dedupe.Memory) {
	if memory == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recallWithin)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range p.Config().Streams {
		if s.Dedupe == 0 {
			continue
		}
		all.Go(func() {
			n, err := p.readRepeats(ctx, memory, s)
			switch {
			case err != nil:
				p.log.Warn("dedupe: reading earlier events failed; some repeats may be stored again", "stream", s.Name, "events", n, "reason", err)
			case n > 0:
				p.log.Info("dedupe: earlier events are recognised again", "stream", s.Name, "events", n)
			}
		})
	}
	all.Wait()
}

// readRepeats reads one stream into the memory, and returns the number of events.
func (p *Platform) readRepeats(ctx context.Context, memory *dedupe.Memory, s config.Stream) (n int, err error) {
	// If Redis does not answer, the events are recognised here at least.
	if needed, err := memory.BeginRecall(ctx, s.Name, s.Dedupe); err == nil && !needed {
		return 0, nil
	}
	r, err := follow.OpenReader(ctx, p.broker, follow.ReaderOptions{Stream: s.Name, Start: broker.Since(time.Now().Add(-s.Dedupe)), ToEnd: true, Newest: recallMost})
	if errors.Is(err, broker.ErrNoStream) {
		return 0, nil // no stream, no events
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	for {
		batch, err := r.Next(ctx)
		if err == io.EOF {
			memory.EndRecall(s.Name)
			return n, nil
		}
		if err != nil {
			return n, err
		}
		for i := range batch {
			if e := &batch[i]; e.Err == nil {
				memory.Recall(s.Name, s.Dedupe, e.Source, e.ID, e.Received)
				n++
			}
		}
	}
}
