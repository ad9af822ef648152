package platform

import (
	"context"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/repeats"
)

// A dead letter holds its record's bytes in base64, so it outgrows any event.
const deadLetterBytes = 9 << 20

// specs are the streams that a config has or needs.
func specs(c *config.Config) []broker.StreamSpec {
	streams := slices.Concat(c.Streams, c.Parked())
	held := c.HeldFor()
	all := make([]broker.StreamSpec, 0, len(streams)+len(held))
	for _, s := range streams {
		spec := broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention,
			KeyOrdered: s.KeyOrdered, Builtin: s.Builtin}
		if s.Name == tidemill.StreamDeadLetters || s.Name == tidemill.Parked(tidemill.StreamDeadLetters) {
			spec.MaxMessageBytes = deadLetterBytes
		}
		all = append(all, spec)
	}
	for _, s := range held {
		all = append(all, broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention,
			KeyOrdered: s.KeyOrdered, Builtin: true, Beside: s.From})
	}
	return all
}

// ensureStreams brings the streams to what a config wants and logs what was
// done and what was left.
func (p *Platform) ensureStreams(ctx context.Context, c *config.Config) error {
	report, err := p.broker.EnsureStreams(ctx, specs(c), broker.EnsureOptions{Reorder: p.reorder})
	var created []string
	for _, c := range report.Changes {
		if c.What == "created" {
			p.log.Info("stream created", "stream", c.Stream, "to", c.To)
			created = append(created, c.Stream)
			continue
		}
		p.log.Info("stream altered", "stream", c.Stream, "what", c.What, "from", c.From, "to", c.To)
	}
	p.forgetRepeats(ctx, created)
	if err != nil {
		return err
	}
	p.logLeft(report)
	return nil
}

// forgetWithin bounds the wait for a Redis that is away: a process that starts
// without it shall start.
const forgetWithin = time.Second

// forgetRepeats keeps the events of new streams from being taken for repeats of
// those that earlier ones of their names held.
func (p *Platform) forgetRepeats(ctx context.Context, streams []string) {
	if p.redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forgetWithin)
	defer cancel()
	p.mu.Lock()
	memory := p.repeats
	p.mu.Unlock()
	for _, stream := range streams {
		memory.Forget(stream)
	}
	for _, stream := range streams {
		if err := repeats.Forget(ctx, p.redis, p.names, p.kafka, stream); err != nil {
			p.log.Warn("events of new streams may be taken for repeats of those that stood on earlier ones", "stream", stream, "reason", err)
			return
		}
	}
}

func (p *Platform) logLeft(report broker.EnsureReport) {
	for _, d := range report.Drift {
		p.log.Warn("stream left as it is", "stream", d.Stream, "what", d.What, "want", d.Want, "have", d.Have, "reason", d.Why, "next", d.Next)
	}
	for _, stream := range report.Unknown {
		p.log.Info("stream is not in the config; nothing is deleted", "stream", stream)
	}
	if p.servers != nil {
		return // that one broker is all there is goes without saying
	}
	for _, w := range report.Warnings {
		p.log.Warn(w)
	}
}
