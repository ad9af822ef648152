package config

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
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

// maxNamed bounds the triggers, and the schedules: each costs every process
// some memory.
const maxNamed = 10_000

func (d *draft) readTriggers(v value) {
	for key, child := range v.pairs() {
		if !d.admit(key, child, len(d.triggers), "trigger") {
			continue
		}
		if reservedTrigger(key.Value) {
			child.problemAt(key, "is the name of a trigger of Tidemill's own; choose another")
		}
		t := Trigger{Name: key.Value, Delivery: defaultDelivery()}
		given := child.given(
			field{"when", func(v value) { t.When = d.readWhens(v) }},
			field{"to", func(v value) { t.To.read(v); d.place.checkService(v.at1("service")) }},
			field{"delivery", t.Delivery.read},
		)
		child.require(key, given, "when", "say which events it gets, such as {type: order-paid}")
		child.require(key, given, "to", "say who gets them, such as {url: \"https://crm.example/hooks\"}")
		d.triggers = append(d.triggers, t)
	}
}

// admit says whether one more trigger or schedule may stand here. A bad name is
// reported, and what stands beneath it is read all the same.
func (d *draft) admit(key *yaml.Node, v value, have int, what string) bool {
	if err := tidemill.CheckLabel(key.Value); err != nil {
		v.problemAt(key, "a %s's name %s", what, err)
	}
	switch {
	case have > maxNamed:
		return false // reported
	case have == maxNamed:
		v.problemAt(key, "is one %s more than %d; let one of them match what several do", what, maxNamed)
	}
	return d.only(key, v)
}

// The functions of ours that work for a whole install, each with a trigger of
// the same name.
const (
	FunctionPromote = "promote" // registers, judges and promotes what runs have made
	FunctionForget  = "forget"  // removes all of a key that has gone
)

// reservedTrigger finds the names that no file may give a trigger.
func reservedTrigger(name string) bool { return name == FunctionPromote || name == FunctionForget }

// ownTriggers are those that an install has for what its recipes make. People see
// them among the others. They work through what is undone of hours, for nobody
// else would.
func ownTriggers(recipes []Recipe) (all []Trigger) {
	if slices.ContainsFunc(recipes, func(r Recipe) bool { return r.Makes.Model != "" }) {
		all = append(all, ownTrigger(FunctionPromote, 5*time.Minute,
			When{Types: []string{tidemill.TypeRunFinished}, Where: "outcome = 'succeeded' AND EXISTS model"}))
	}
	if len(recipes) > 0 {
		all = append(all, ownTrigger(FunctionForget, 10*time.Minute,
			When{Types: []string{tidemill.TypeBotDeleted}}, When{Types: []string{tidemill.TypeKeyForgetting}}))
	}
	return all
}

func ownTrigger(name string, timeout time.Duration, when ...When) Trigger {
	return Trigger{Name: name, Builtin: true, When: when, To: Target{Function: name},
		Delivery: Delivery{Attempts: 300, Backoff: defaultBackoff(), Timeout: timeout, Ordered: true, Concurrency: 32}}
}
