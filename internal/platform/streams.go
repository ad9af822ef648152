package platform

import (
	"context"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// A dead letter holds its record's bytes in base64, so it outgrows any event.
const deadLetterBytes = 9 << 20

func specs(c *config.Config) []broker.StreamSpec {
	all := make([]broker.StreamSpec, 0, len(c.Streams))
	for _, s := range c.Streams {
		spec := broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention,
			KeyOrdered: s.KeyOrdered, Builtin: s.Builtin}
		if s.Name == tidemill.StreamDeadLetters {
			spec.MaxMessageBytes = deadLetterBytes
		}
		all = append(all, spec)
	}
	return all
}

// ensureStreams brings the streams to what a config wants and logs what was
// done and what was left.
func (p *Platform) ensureStreams(ctx context.Context, c *config.Config) error {
	report, err := p.broker.EnsureStreams(ctx, specs(c), broker.EnsureOptions{Reorder: p.reorder})
	for _, c := range report.Changes {
		if c.What == "created" {
			p.log.Info("stream created", "stream", c.Stream, "with", c.To)
			continue
		}
		p.log.Info("stream altered", "stream", c.Stream, "what", c.What, "from", c.From, "to", c.To)
	}
	if err != nil {
		return err
	}
	p.logLeft(report)
	return nil
}

func (p *Platform) logLeft(report broker.EnsureReport) {
	for _, d := range report.Drift {
		p.log.Warn("stream left as it is", "stream", d.Stream, "what", d.What, "want", d.Want, "have", d.Have, "why", d.Why, "next", d.Next)
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
