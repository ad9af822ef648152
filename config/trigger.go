package config

import (
	"slices"
	"time"
)

// Trigger sends the events that match to a subscriber.
type Trigger struct {
	Name     string
	When     []When // an event matches if one of them does
	To       Target
	Delivery Delivery
	Builtin  bool // it belongs to a recipe, which it is named after, or to the install; no file says it
}

// When is a filter over events.
type When struct {
	Stream string   // where they are read; empty is the home of each type
	Types  []string // sorted; none is every type of the stream
	Where  string   // CESQL over attributes; empty is all
}

// Target is who gets a trigger's events: a URL, a Knative Service by its name,
// or a function of ours.
type Target struct {
	URL, Service, Function string
	Recipe                 string // which a function of ours works for
	Credentials            Credentials
}

// Credentials name the files that hold what a subscriber asks for. They are
// read again when they change.
type Credentials struct {
	BearerFile                string // a token
	BasicFile                 string // user:password
	Header, HeaderFile        string // any other header, and the file with its value
	CAFile, CertFile, KeyFile string // PEM
}

// Delivery is how hard an event's delivery is tried, and how fast.
type Delivery struct {
	Attempts    int // in all
	Backoff     Backoff
	Timeout     time.Duration // of one attempt
	Ordered     bool          // a key's next event waits for the end of its predecessor
	Concurrency int           // attempts under way at once, in each dispatcher
	Rate        float64       // attempts a second, in all; 0 is no bound
	Replies     bool          // what the subscriber answers is published
}

// Backoff is how long a failed attempt is waited after.
type Backoff struct {
	Kind       BackoffKind
	First, Cap time.Duration
	Jitter     bool // a random part of it, a half at least
}

// BackoffKind is how a backoff grows.
type BackoffKind string

// The ways to grow.
const (
	Constant    BackoffKind = "constant"
	Linear      BackoffKind = "linear"
	Exponential BackoffKind = "exponential"
)

// Trigger finds a trigger by its name.
func (c *Config) Trigger(name string) (Trigger, bool) {
	i := slices.IndexFunc(c.Triggers, func(t Trigger) bool { return t.Name == name })
	if i < 0 {
		return Trigger{}, false
	}
	return c.Triggers[i], true
}

// StreamsOf are the streams where a trigger's events live, sorted.
func (c *Config) StreamsOf(t Trigger) []string {
	var streams []string
	for _, w := range t.When {
		streams = append(streams, c.homes(w)...)
	}
	slices.Sort(streams)
	return slices.Compact(streams)
}

func (c *Config) homes(w When) []string {
	if w.Stream != "" {
		return []string{w.Stream}
	}
	var streams []string
	for _, typ := range w.Types {
		streams = append(streams, c.StreamFor(typ))
	}
	return streams
}
