package config

import (
	"time"

	"go.yaml.in/yaml/v3"
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
		Ordered: true, Concurrency: 32, Replies: true}
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
		field{"replies", readWord(&y.Replies, "accept", "ignore")},
	)
}

func readInteger(to *int, low, high int) func(value) {
	return func(v value) {
		if n, ok := v.integer(low, high); ok {
			*to = n
		}
	}
}

// readWord reads one of two words, of which the first is true.
func readWord(to *bool, yes, no string) func(value) {
	return func(v value) {
		if word, ok := v.oneOf(yes, no); ok {
			*to = word == yes
		}
	}
}

// readWait reads how long something takes.
func readWait(to *time.Duration, low, high time.Duration) func(value) {
	return func(v value) {
		if d, ok := v.span(low, high); ok {
			*to = d
		}
	}
}

// read takes a word for the kind, or more as keys and values.
func (b *Backoff) read(v value) {
	if v.node.Kind != yaml.MappingNode {
		b.readKind(v)
		return
	}
	given := v.given(
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
		v.child("cap", v.at("cap")).problem("a constant backoff does not grow; remove the key, and say first")
	case given["first"] && given["cap"] && b.First > b.Cap:
		v.child("cap", v.at("cap")).problem("%s is less than first, which is %s", showSpan(b.Cap), showSpan(b.First))
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
