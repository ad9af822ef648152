package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

const (
	maxAttempts    = 1000
	minTimeout     = 10 * time.Millisecond
	maxTimeout     = time.Hour
	maxConcurrency = 10_000
	minWait        = time.Millisecond
	maxWait        = 24 * time.Hour
)

func defaultDelivery() Delivery {
	return Delivery{Attempts: 10, Backoff: defaultBackoff(), Timeout: 10 * time.Second,
		Ordered: true, Concurrency: 32}
}

func defaultBackoff() Backoff {
	return Backoff{Kind: Exponential, First: time.Second, Cap: 5 * time.Minute, Jitter: true}
}

func (y *Delivery) read(v value) {
	v.fields(
		field{"attempts", readInteger(&y.Attempts, 1, maxAttempts)},
		field{"backoff", y.Backoff.read},
		field{"timeout", readWait(&y.Timeout, minTimeout, maxTimeout)},
		field{"order", readWord(&y.Ordered, "key", "none")},
		field{"concurrency", readInteger(&y.Concurrency, 1, maxConcurrency)},
		field{"rate", y.readRate},
		field{"replies", y.Replies.read},
	)
}

// read reads the replies as a word, or as the types and keys that are accepted.
func (r *Replies) read(v value) {
	if v.node.Kind != yaml.MappingNode {
		if word, ok := v.oneOf("accept", "ignore"); ok {
			r.Accept = word == "accept"
		}
		return
	}
	r.Accept = true
	v.fields(
		field{"types", r.readTypes},
		field{"keys", func(v value) {
			if word, ok := v.oneOf("same", "any"); ok {
				r.AnyKey = word == "any"
			}
		}},
	)
}

func (r *Replies) readTypes(v value) {
	if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
		v.problem("is an empty list; name types, or write replies: ignore")
		return
	}
	types, at := readFilterTypes(v)
	for i, typ := range types {
		if tidemill.Reserved(typ, "") != nil {
			at[i].problem("%s is a type of Tidemill's own, and no subscriber may reply with it; remove it", show(typ))
		}
	}
	slices.Sort(types)
	r.Types = types
}

// check sets the default, and checks the replies of a URL. Any program may answer there, so its
// replies need their types.
func (r *Replies) check(v value, to Target) {
	switch {
	case v.node == nil && to.URL == "":
		r.Accept = true
	case v.node == nil:
		r.Unsaid = true
	case to.URL != "" && r.Accept && v.valueOf("types").node == nil:
		v.problem("must name the types of replies, because the target is a url, where any program may answer; write {types: [invoice-sent]} with your types, or ignore")
	}
}

func readInteger(to *int, low, high int) func(value) {
	return func(v value) {
		if n, ok := v.integer(low, high); ok {
			*to = n
		}
	}
}

// readWord reads one of two words. The first means true.
func readWord(to *bool, yes, no string) func(value) {
	return func(v value) {
		if word, ok := v.oneOf(yes, no); ok {
			*to = word == yes
		}
	}
}

// readWait reads a duration.
func readWait(to *time.Duration, low, high time.Duration) func(value) {
	return func(v value) {
		if d, ok := v.span(low, high); ok {
			*to = d
		}
	}
}

// read reads the kind as a word, or the backoff as a mapping.
func (b *Backoff) read(v value) {
	if v.node.Kind != yaml.MappingNode {
		b.readKind(v)
		return
	}
	given := v.presentFields(
		field{"kind", b.readKind},
		field{"first", readWait(&b.First, minWait, maxWait)},
		field{"cap", readWait(&b.Cap, minWait, maxWait)},
		field{"jitter", func(v value) {
			if yes, ok := v.boolean(); ok {
				b.Jitter = yes
			}
		}},
	)
	switch {
	case b.Kind == Constant && given["cap"]:
		v.child("cap", v.nodeAt("cap")).problem("a constant backoff does not grow; remove the key, and say first")
	case given["first"] && given["cap"] && b.First > b.Cap:
		v.child("cap", v.nodeAt("cap")).problem("%s is less than first, which is %s", showSpan(b.Cap), showSpan(b.First))
	case given["cap"]:
		b.First = min(b.First, b.Cap)
	default:
		b.Cap = max(b.Cap, b.First)
	}
}

func (b *Backoff) readKind(v value) {
	if kind, ok := v.oneOf(string(Constant), string(Linear), string(Exponential)); ok {
		b.Kind = BackoffKind(kind)
	}
}

const maxRate = 100_000 // attempts per second

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

func (y *Delivery) readRate(v value) {
	text, ok := v.scalar()
	if !ok {
		return
	}
	rate, err := parseRate(text)
	if err != nil {
		v.problem("%s", err)
		return
	}
	y.Rate = rate
}

// parseRate parses a whole number per second, minute or hour, such as 100/s.
func parseRate(s string) (float64, error) {
	number, per, _ := strings.Cut(s, "/")
	unit, ok := rateUnits[per]
	n, err := strconv.ParseUint(number, 10, 32)
	switch {
	case !ok && err == nil:
		return 0, fmt.Errorf("must have a unit of time, such as 100/s, 100/m or 100/h, not %s", show(s))
	case !ok || err != nil || !plainDigits.MatchString(number):
		return 0, fmt.Errorf("must be a whole number and a time, such as 100/s, 100/m or 100/h, not %s", show(s))
	case n == 0:
		return 0, fmt.Errorf("%s would deliver nothing; `tidemill triggers pause` makes events wait, and without the key there is no bound", show(s))
	}
	rate := float64(n) / unit.Seconds()
	if rate > maxRate {
		return 0, fmt.Errorf("%s is more than %d a second; remove the key to set no bound", show(s), maxRate)
	}
	return rate, nil
}

func (c *Credentials) fields() []field {
	return []field{
		{"bearerFile", readFile(&c.BearerFile)},
		{"basicFile", readFile(&c.BasicFile)},
		{"header", c.readHeader},
		{"headerFile", readFile(&c.HeaderFile)},
		{"caFile", readFile(&c.CAFile)},
		{"certFile", readFile(&c.CertFile)},
		{"keyFile", readFile(&c.KeyFile)},
	}
}

// Files returns the files that a delivery needs, by the key that names each.
func (c Credentials) Files() map[string]string {
	files := map[string]string{"bearerFile": c.BearerFile, "basicFile": c.BasicFile, "headerFile": c.HeaderFile,
		"caFile": c.CAFile, "certFile": c.CertFile, "keyFile": c.KeyFile}
	maps.DeleteFunc(files, func(_, file string) bool { return file == "" })
	return files
}

// readFile reads the name of a file. It does not check that the file exists, because the config
// may be read on another machine.
func readFile(to *string) func(value) {
	return func(v value) {
		if text, ok := v.text(); ok {
			*to = text
		}
	}
}

// neverSent are headers that say how a request is made; setting them in the file would break
// requests. The connection headers are those of RFC 9110 and others that clients treat as such.
var neverSent = []string{"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
	"te", "trailer", "transfer-encoding", "upgrade",
	"host", "content-type", "content-length", "content-encoding", "expect", "prefer", "user-agent", "accept-encoding", "traceparent", "tracestate"}

func (c *Credentials) readHeader(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	lower := strings.ToLower(text)
	switch {
	case len(text) > maxHeader || strings.Trim(lower, headerLetters) != "":
		v.problem("%s is not a header's name; write one such as X-Api-Key", show(text))
	case strings.HasPrefix(lower, "ce-"):
		v.problem("%s is an attribute of the event; headers that begin with ce- are the event's own", show(text))
	case slices.Contains(neverSent, lower):
		v.problem("%s is a header that Tidemill writes; name the header that the subscriber expects, such as X-Api-Key", show(text))
	default:
		c.Header = text
	}
}

const (
	maxHeader     = 100
	headerLetters = "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~" // RFC 9110's tokens
)

// authKeys are the keys that authenticate us to a subscriber.
var authKeys = []string{"bearerFile", "basicFile", "header"}

// check compares a target's credentials with each other.
func (c *Credentials) check(v value, given map[string]bool) {
	if given["function"] && !given["url"] && !given["service"] {
		for _, f := range c.fields() {
			if given[f.key] {
				v.child(f.key, v.nodeAt(f.key)).problem("a function of Tidemill's own asks for no credentials; remove the key")
			}
		}
		return
	}
	var named []string
	for _, key := range authKeys {
		if given[key] {
			named = append(named, key)
		}
	}
	if len(named) > 1 {
		v.problem("has %s; a subscriber gets only one of them, keep one", strings.Join(named, " and "))
	}
	for _, pair := range [][2]string{{"header", "headerFile"}, {"headerFile", "header"}, {"certFile", "keyFile"}, {"keyFile", "certFile"}} {
		if given[pair[0]] {
			v.require(v.nodeAt(pair[0]), given, pair[1], "it goes with "+pair[0])
		}
	}
}
