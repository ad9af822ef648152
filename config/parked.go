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
