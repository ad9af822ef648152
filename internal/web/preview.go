package web

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/triggers/match"
)

// preview counts what of some ranges a trigger matches.
type preview struct {
	ranges map[string][]tidemill.Range
	rules  map[string]*match.Index // by stream: a condition holds where its events live
	seen   *api.Preview
	found  []int
}

func newPreview(c *config.Config, t config.Trigger, ranges map[string][]tidemill.Range) (*preview, error) {
	p := &preview{ranges: ranges, rules: map[string]*match.Index{}, seen: &api.Preview{First: []api.Tailed{}}}
	of := map[string][]match.Rule{}
	for _, w := range t.When {
		rule := match.Rule{Types: w.Types}
		if w.Where != "" {
			where, err := match.Compile(w.Where)
			if err != nil {
				return nil, fmt.Errorf("trigger %s: %w", t.Name, err)
			}
			rule.Where = where
		}
		for _, stream := range c.StreamsOf(config.Trigger{When: []config.When{w}}) {
			of[stream] = append(of[stream], rule)
		}
	}
	for stream, rules := range of {
		p.rules[stream] = match.NewIndex(rules)
	}
	return p, nil
}

// read reads the ranges one after the other, for as long as there is time.
func (p *preview) read(ctx context.Context, b *broker.Broker) error {
	for _, stream := range slices.Sorted(maps.Keys(p.ranges)) {
		for _, r := range p.ranges[stream] {
			if err := p.readRange(ctx, b, stream, r); err != nil {
				return err
			}
		}
	}
	p.seen.Complete = true
	return nil
}

func (p *preview) readRange(ctx context.Context, b *broker.Broker, stream string, r tidemill.Range) error {
	for at := r.From; at < r.To; {
		from := broker.Position{Stream: stream, Partition: r.Partition, Offset: at}
		next, err := b.Read(ctx, from, previewBytes, func(e *broker.Incoming) bool {
			if e.Offset < r.To {
				p.take(from, e)
			}
			return e.Offset < r.To
		})
		if err != nil {
			return err
		}
		if next == at {
			return nil // what is left are no events, and their end is the log's
		}
		at = next
	}
	return nil
}

func (p *preview) take(at broker.Position, e *broker.Incoming) {
	p.seen.Read++
	if e.Err != nil {
		return
	}
	p.found = p.rules[at.Stream].Match(&e.View, p.found[:0])
	if len(p.found) == 0 {
		return
	}
	p.seen.Matched++
	if len(p.seen.First) < previewFirst {
		p.seen.First = append(p.seen.First, api.Tailed{Partition: at.Partition, Offset: e.Offset, Received: e.Time.UTC(), Event: json.RawMessage(broker.MarshalStructured(&e.View))})
	}
}
