package config

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

const (
	defaultPartitions = 12
	maxPartitions     = 4096 // more is a slip: a Kafka cluster bears some ten thousand in all
	defaultRetention  = 7 * 24 * time.Hour
	maxType           = 255 // letters
)

// builtins are the streams that every install has. Facts have more partitions
// than they need at first, because they cannot grow later without moving keys.
func builtins() []Stream {
	day := 24 * time.Hour
	return []Stream{
		{Name: tidemill.StreamEvents, Partitions: 12, Retention: defaultRetention, Builtin: true, KeyOrdered: true},
		{Name: tidemill.StreamFacts, Partitions: 24, Retention: Forever, Builtin: true, KeyOrdered: true},
		// A step names its number, so a reader needs no order among steps.
		{Name: tidemill.StreamProgress, Partitions: 12, Retention: day, Builtin: true, KeyOrdered: false},
		{Name: tidemill.StreamDeadLetters, Partitions: 6, Retention: Forever, Builtin: true, KeyOrdered: true},
		// What people ask for is little, and has one order.
		{Name: tidemill.StreamActs, Partitions: 1, Retention: Forever, Builtin: true, KeyOrdered: true},
		{Name: tidemill.StreamClock, Partitions: 1, Retention: 30 * day, Builtin: true, KeyOrdered: true},
	}
}

// mustNotExpire are the streams that others are rebuilt from.
func mustNotExpire(stream string) bool {
	return stream == tidemill.StreamFacts || stream == tidemill.StreamDeadLetters || stream == tidemill.StreamActs
}

func (d *draft) readStreams(v value) {
	for key, child := range v.pairs() {
		checkStreamName(key, child)
		if d.only(key, child) {
			d.readStream(key.Value, child)
		}
	}
}

func checkStreamName(key *yaml.Node, v value) {
	if err := tidemill.CheckStream(key.Value); err != nil {
		v.problemAt(key, "a stream's name %s", inner(err))
	} else if of, parked := tidemill.CutParked(key.Value); parked {
		v.problemAt(key, "is reserved for what waits on %s; choose another name", show(of))
	} else if tidemill.ScorerStream(key.Value) {
		v.problemAt(key, "begins with scorer., as do the streams that belong to scorers; choose another name")
	}
}

func (d *draft) readStream(name string, v value) {
	s, ok := d.streams[name]
	if !ok {
		s = Stream{Name: name, Partitions: defaultPartitions, Retention: defaultRetention, KeyOrdered: true}
	}
	v.fields(
		field{"partitions", func(v value) { readPartitions(v, &s) }},
		field{"retention", func(v value) { readRetention(v, &s) }},
		field{"types", func(v value) { d.readTypes(v, &s) }},
		field{"order", func(v value) { readOrder(v, &s) }},
		field{"dedupe", func(v value) { d.readDedupe(v, s) }},
	)
	d.streams[name] = s
}

func readPartitions(v value, s *Stream) {
	if n, ok := v.integer(1, maxPartitions); ok {
		s.Partitions = n
	}
}

func readRetention(v value, s *Stream) {
	text, ok := v.scalar()
	if !ok {
		return
	}
	r, err := parseRetention(text)
	switch {
	case err != nil:
		v.problem("%s", err)
	case mustNotExpire(s.Name) && r != Forever:
		v.problem("%s must not expire, for state is rebuilt from it; write forever or remove the key", s.Name)
	default:
		s.Retention = r
	}
}

func readOrder(v value, s *Stream) {
	if s.Builtin {
		v.problem("is fixed for the built-in stream %s; remove the key", s.Name)
		return
	}
	if order, ok := v.oneOf("key", "none"); ok {
		s.KeyOrdered = order == "key"
	}
}

func (d *draft) readTypes(v value, s *Stream) {
	switch {
	case s.Name == tidemill.StreamEvents:
		v.problem("events is the home of every type that no other stream claims; remove the key")
		return
	case s.Builtin:
		v.problem("the built-in stream %s takes only events of Tidemill's own; claim types on a stream of yours", s.Name)
		return
	}
	for _, item := range v.items() {
		if typ, ok := d.readType(item); ok {
			s.Types = append(s.Types, typ)
		}
	}
	slices.Sort(s.Types)
}

// readType reads a type that a stream claims and that no other may.
func (d *draft) readType(v value) (string, bool) {
	typ, ok := v.text()
	switch {
	case !ok:
		return "", false
	case len(typ) > maxType:
		v.problem("%s is longer than %d letters", show(typ), maxType)
		return "", false
	case strings.ContainsAny(typ, " \t\n"):
		v.problem("%s has a space; a type is one word", show(typ))
		return "", false
	case tidemill.ReservedType(typ):
		v.problem("%s is a type of Tidemill's own, whose home is fixed; remove it", show(typ))
		return "", false
	}
	if first, ok := d.claimed[typ]; ok {
		v.problem("%s is claimed in %s by %s too; a type has one home, keep one", show(typ), first.at(), first.Path)
		return "", false
	}
	d.claimed[typ] = Problem{File: v.file, Line: v.node.Line, Path: v.path}
	return typ, true
}
