package config

import (
	"slices"
	"time"

	"tidemill.dev"
)

// Config is the whole of what the user asked for, with defaults filled in. It
// is read only: a changed file makes a new Config.
type Config struct {
	Name      string     // of the install
	Streams   []Stream   // by name, the built-in ones among them
	Triggers  []Trigger  // by name
	Schedules []Schedule // by name
	Pools     []Pool     // by name, the default one among them
	Recipes   []Recipe   // by name
	Scorers   []Scorer   // by name
}

// Stream is a stream as it shall be.
type Stream struct {
	Name       string
	Partitions int
	Retention  time.Duration // Forever, or how long an event stays
	Types      []string      // of outside events whose home it is, sorted
	Builtin    bool
	// KeyOrdered says that events of one key must stay in order. Its partitions
	// then never grow by themselves, because growth moves keys.
	KeyOrdered bool
	// Dedupe is how long an event from outside is remembered, so that the same
	// one is not stored again; 0 is not at all.
	Dedupe time.Duration
}

// Default is the config that a file with only its version means.
func Default() *Config { return newDraft(new(report)).config() }

// Names derives the install's names outside the process.
func (c *Config) Names() (tidemill.Names, error) { return tidemill.NewNames(c.Name) }

// Stream finds a stream by its name.
func (c *Config) Stream(name string) (Stream, bool) {
	i := slices.IndexFunc(c.Streams, func(s Stream) bool { return s.Name == name })
	if i < 0 {
		return Stream{}, false
	}
	return c.Streams[i], true
}

// StreamFor is the stream where events of a type live: the catalogue's for a
// type of ours, else the stream that claims the type, else events.
func (c *Config) StreamFor(eventType string) string {
	if tidemill.ReservedType(eventType) {
		if e, ok := tidemill.Lookup(eventType); ok && e.Stream != "" {
			return e.Stream
		}
	}
	for _, s := range c.Streams {
		if slices.Contains(s.Types, eventType) {
			return s.Name
		}
	}
	return tidemill.StreamEvents
}
