package config

import (
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Trigger sends matching events to a subscriber.
type Trigger struct {
	Name     string
	When     []When // an event matches if one of the filters does
	To       Target
	Delivery Delivery
	Builtin  bool // the trigger belongs to a recipe, whose name it has, or to the install; it is in no file
}

// When is a filter for events.
type When struct {
	Stream string   // stream that is read; empty means the home of each type
	Types  []string // sorted; empty means every type of the stream
	Where  string   // CESQL over attributes; empty matches all
}

// Target is the subscriber of a trigger: a URL, the name of a Knative Service, or one of
// Tidemill's functions.
type Target struct {
	URL, Service, Function string
	Recipe                 string // recipe that a Tidemill function works for
	Credentials            Credentials
}

// Credentials name the files with a subscriber's credentials. The files are read again when
// they change.
type Credentials struct {
	BearerFile                string // file with a token
	BasicFile                 string // file with user:password
	Header, HeaderFile        string // any other header, and the file with its value
	CAFile, CertFile, KeyFile string // PEM files
}

// Delivery says how often and how fast delivery of an event is tried.
type Delivery struct {
	Attempts    int // attempts in total
	Backoff     Backoff
	Timeout     time.Duration // limit for one attempt
	Ordered     bool          // a key's next event waits until the previous one is done
	Concurrency int           // concurrent attempts of each dispatcher
	Rate        float64       // attempts per second in total; 0 means no limit
	Replies     Replies
}

// Replies says which events in the answers of a subscriber are published. Answers of Tidemill's own
// functions have no limits.
type Replies struct {
	Accept bool
	Types  []string // sorted types that are accepted; empty means all types that end no key
	AnyKey bool     // replies may have other keys than the event that they answer
	Unsaid bool     // the file does not say that replies are ignored, so ignored replies are reported
}

// Backoff is the wait after a failed attempt.
type Backoff struct {
	Kind       BackoffKind
	First, Cap time.Duration
	Jitter     bool // replace up to half of the wait by a random part
}

// BackoffKind says how a backoff grows.
type BackoffKind string

// The kinds of growth.
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

// StreamsOf returns the streams that a trigger reads, sorted.
func (c *Config) StreamsOf(t Trigger) []string {
	var streams []string
	for _, w := range t.When {
		streams = slices.AppendSeq(streams, maps.Keys(c.TypesByStream(w)))
	}
	slices.Sort(streams)
	return slices.Compact(streams)
}

// TypesByStream returns the types that a filter wants, by the stream where they are read. No types
// means all.
func (c *Config) TypesByStream(w When) map[string][]string {
	if w.Stream != "" {
		return map[string][]string{w.Stream: w.Types}
	}
	all := map[string][]string{}
	for _, typ := range w.Types {
		home := c.StreamFor(typ)
		all[home] = append(all[home], typ)
	}
	return all
}

// maxNamed bounds the number of triggers and of schedules, because each uses some memory in
// every process.
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
		given := child.presentFields(
			field{"when", func(v value) { t.When = d.readWhens(v) }},
			field{"to", func(v value) { t.To.read(v); d.place.checkService(v.valueOf("service")) }},
			field{"delivery", t.Delivery.read},
		)
		t.Delivery.Replies.check(child.valueOf("delivery").valueOf("replies"), t.To)
		child.require(key, given, "when", "say which events it gets, such as {type: order-paid}")
		child.require(key, given, "to", "name the subscriber, such as {url: \"https://crm.example/hooks\"}")
		d.triggers = append(d.triggers, t)
	}
}

// admit reports whether one more trigger or schedule may be added. It reports a bad name, but
// its settings are still read.
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
	return d.isOnlyFile(key, v)
}

// The functions of Tidemill that work for a whole install. Each has a trigger of the same name.
const (
	FunctionPromote = "promote" // registers, judges and promotes the versions that runs have made
	FunctionForget  = "forget"  // removes everything of a key that is deleted
)

// reservedTrigger reports whether a file may not give a trigger this name.
func reservedTrigger(name string) bool { return name == FunctionPromote || name == FunctionForget }

// ownTriggers returns the install's own triggers for the output of its recipes. Users see them
// in the list of triggers. They retry for many hours, because nothing else would do their work.
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
