package config

import (
	"slices"
	"strings"

	"tidemill.dev"
)

// Parked is the stream where this one's events wait that could not yet be
// delivered. It has the same partitions, and grows when this one does: what
// waits is written to the partition that it came from.
func (s Stream) Parked() Stream {
	return Stream{Name: tidemill.Parked(s.Name), Partitions: s.Partitions, Retention: s.Retention,
		Builtin: true, KeyOrdered: s.KeyOrdered}
}

// Parked are the streams that the triggers need beside those that they read, by
// name. They are not among Streams, for there are none without triggers.
func (c *Config) Parked() []Stream {
	read := map[string]bool{}
	homes := map[string]string{} // of types, for thousands of triggers may name the same few
	for _, t := range c.Triggers {
		for _, w := range t.When {
			if w.Stream != "" {
				read[w.Stream] = true
				continue
			}
			for _, typ := range w.Types {
				home, known := homes[typ]
				if !known {
					home = c.StreamFor(typ)
					homes[typ] = home
				}
				read[home] = true
			}
		}
	}
	var all []Stream
	for _, s := range c.Streams {
		if read[s.Name] {
			all = append(all, s.Parked())
		}
	}
	slices.SortFunc(all, func(a, b Stream) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// HeldFor are the streams where events wait for the models that the scorers have
// yet to load, by name, and beside each the stream that it is for: it has as many
// partitions, for what waits stays in its own.
func (c *Config) HeldFor() (all []Held) {
	for _, s := range c.Scorers {
		from, ok := c.Stream(s.From)
		if !ok {
			continue // never: a config without it is refused
		}
		held := from.Parked()
		held.Name = tidemill.ScorerParked(s.Name)
		all = append(all, Held{Stream: held, From: s.From, Scorer: s.Name})
	}
	return all
}

// Held is a stream where a scorer's events wait.
type Held struct {
	Stream
	From   string // the stream that they came from
	Scorer string
}

// Scorer finds a scorer by its name.
func (c *Config) Scorer(name string) (Scorer, bool) {
	i := slices.IndexFunc(c.Scorers, func(s Scorer) bool { return s.Name == name })
	if i < 0 {
		return Scorer{}, false
	}
	return c.Scorers[i], true
}
