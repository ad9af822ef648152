package config

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

const (
	maxURL        = 2000 // characters; longer URLs may be refused on their way
	maxKubernetes = 63   // characters of a name
	schemeHTTP    = "http"
	schemeHTTPS   = "https"
)

// targets are the keys that say who gets the events. A target has exactly one of them.
var targets = []string{"url", "service", "function"}

func (t *Target) read(v value) {
	given := v.presentFields(append([]field{
		{"url", t.readURL},
		{"service", t.readService},
		{"function", t.readFunction},
	}, t.Credentials.fields()...)...)
	var named []string
	for _, key := range targets {
		if given[key] {
			named = append(named, key)
		}
	}
	switch {
	case len(named) > 1:
		v.problem("has %s; a trigger has one subscriber, keep one", strings.Join(named, " and "))
	case len(named) == 0:
		v.require(v.node, given, "url", "name the subscriber: url for any HTTP server, service for a Knative Service, function for one of Tidemill's own")
	}
	t.Credentials.check(v, given)
	for _, key := range []string{"caFile", "certFile"} {
		if given[key] && strings.HasPrefix(strings.ToLower(t.URL), schemeHTTP+":") {
			v.child(key, v.nodeAt(key)).problem("is for https, and the url is not; write https, or remove the key")
		}
	}
}

func (t *Target) readURL(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if err := checkURL(text); err != nil {
		v.problem("%s", err)
		return
	}
	t.URL = text
}

// checkURL repeats nothing of a URL that may contain a user, because that may be a token.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case strings.Contains(text, "@") && (err != nil || u.User != nil):
		return fmt.Errorf("has a user before the host; remove it, and put it into a file: user:password into one that basicFile names, a token into one that bearerFile names")
	case err != nil || u.Host == "" || strings.ContainsAny(text, " \t\n\\"):
		return fmt.Errorf("%s is not a URL; write it like https://crm.example/hooks", show(text))
	case u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS:
		return fmt.Errorf("%s is not http or https, and events are delivered by nothing else", show(text))
	case len(text) > maxURL:
		return fmt.Errorf("%s is longer than %d letters", show(text), maxURL)
	case strings.Contains(text, "#"):
		return fmt.Errorf("%s has a fragment (#), which is not sent to servers; remove it", show(text))
	case !goodPort(u) || u.Hostname() == "":
		return fmt.Errorf("%s has no good host and port; write it like https://crm.example:8443/hooks", show(text))
	}
	return checkQuery(u)
}

func goodPort(u *url.URL) bool {
	if !strings.HasSuffix(u.Host, ":"+u.Port()) {
		return true // there is no port
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// checkQuery decodes the escapes, which the check of the whole file does not do.
func checkQuery(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("has an invalid query (%s); escape characters other than letters and digits", plain(err.Error()))
	}
	for _, values := range query {
		for _, v := range values {
			if why := secretIn(v); why != "" {
				return fmt.Errorf("has a query that %s", why)
			}
		}
	}
	return nil
}

var (
	// A Service's name becomes a host name and may not begin with a digit.
	kubernetesService   = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	kubernetesNamespace = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

func (t *Target) readService(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	namespace, name, both := strings.Cut(text, "/")
	if !both {
		namespace, name = "", text
	}
	switch {
	case both && (len(namespace) > maxKubernetes || !kubernetesNamespace.MatchString(namespace)):
		v.problem("%s has a namespace that Kubernetes does not allow: a-z, 0-9 and, inside, '-', at most %d letters; write NAME or NAMESPACE/NAME", show(text), maxKubernetes)
	case len(name) > maxKubernetes || !kubernetesService.MatchString(name):
		v.problem("%s is not a name that a Knative Service can have: a letter, then a-z, 0-9 and, inside, '-', at most %d letters; write NAME or NAMESPACE/NAME, and for anything else url", show(text), maxKubernetes)
	default:
		t.Service = text
	}
}

func (t *Target) readFunction(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if err := tidemill.CheckLabel(text); err != nil {
		v.problem("%s is not a function's name, which %s", show(text), err)
		return
	}
	t.Function = text
}
