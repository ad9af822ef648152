package config

import (
	"encoding/json"
	"slices"
	"time"

	"tidemill.dev"
)

// Config is the whole of what the user asked for, with defaults filled in. It
// is read only: a changed file makes a new Config.
type Config struct {
	Name    string   // of the install
	Streams []Stream // by name, the built-in ones among them
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

// Parked is the stream where this one's events wait that could not yet be
// delivered.
func (s Stream) Parked() Stream {
	return Stream{Name: tidemill.Parked(s.Name), Partitions: s.Partitions, Retention: s.Retention,
		Builtin: true, KeyOrdered: true}
}

// hashed is what a hash covers. The names in it are part of the hash and stay
// when the fields of Config are renamed; new ones must be omitted when empty,
// so that a config that does not use them keeps its hash.
type hashed struct {
	Name    string         `json:"name"`
	Streams []hashedStream `json:"streams"`
}

type hashedStream struct {
	Name       string   `json:"name"`
	Partitions int      `json:"partitions"`
	Retention  string   `json:"retention"`
	Types      []string `json:"types,omitempty"`
	KeyOrdered bool     `json:"keyOrdered"`
	Dedupe     string   `json:"dedupe,omitempty"` // empty is the default
}

// Hash names the config by its meaning: two files that mean the same, whatever
// their layout, have one hash. Every fact names the config that applied by it.
func (c *Config) Hash() string {
	h := hashed{Name: c.Name}
	for _, s := range c.Streams {
		h.Streams = append(h.Streams, hashedStream{s.Name, s.Partitions, showRetention(s.Retention), s.Types, s.KeyOrdered, hashedDedupe(s)})
	}
	text, _ := json.Marshal(h) // strings, numbers and booleans cannot fail
	return tidemill.ID("config", string(text))
}
