package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

const (
	defaultPartitions = 12
	maxPartitions     = 4096 // more is a typing error: a whole Kafka cluster supports some ten thousand
	defaultRetention  = 7 * 24 * time.Hour
	maxType           = 255 // characters
)

// builtins returns the streams that every install has. Facts start with more partitions than
// they need, because adding partitions later would move keys.
func builtins() []Stream {
	day := 24 * time.Hour
	return []Stream{
		{Name: tidemill.StreamEvents, Partitions: 12, Retention: defaultRetention, Builtin: true, KeyOrdered: true},
		{Name: tidemill.StreamFacts, Partitions: 24, Retention: Forever, Builtin: true, KeyOrdered: true},
		// Each step contains its number, so a reader needs no order.
		{Name: tidemill.StreamProgress, Partitions: 12, Retention: day, Builtin: true, KeyOrdered: false},
		{Name: tidemill.StreamDeadLetters, Partitions: 6, Retention: Forever, Builtin: true, KeyOrdered: true},
		// Commands are few, and all have one order.
		{Name: tidemill.StreamCommands, Partitions: 1, Retention: Forever, Builtin: true, KeyOrdered: true},
		{Name: tidemill.StreamClock, Partitions: 1, Retention: 30 * day, Builtin: true, KeyOrdered: true},
		{Name: tidemill.StreamOutcomes, Partitions: 12, Retention: 90 * day, Builtin: true, KeyOrdered: true},
		// A reader wants the newest record of each group and partition, so all have one order.
		{Name: tidemill.StreamGroupOffsets, Partitions: 1, Retention: Forever, Builtin: true, KeyOrdered: true},
	}
}

// mustNotExpire reports whether other state is rebuilt from this stream.
func mustNotExpire(stream string) bool {
	return stream == tidemill.StreamFacts || stream == tidemill.StreamDeadLetters || stream == tidemill.StreamCommands || stream == tidemill.StreamGroupOffsets
}

func (d *draft) readStreams(v value) {
	for key, child := range v.pairs() {
		checkStreamName(key, child)
		if d.isOnlyFile(key, child) {
			d.readStream(key.Value, child)
		}
	}
}

func checkStreamName(key *yaml.Node, v value) {
	if err := tidemill.CheckStream(key.Value); err != nil {
		v.problemAt(key, "a stream's name %s", trimName(err))
	} else if of, parked := tidemill.CutParked(key.Value); parked {
		v.problemAt(key, "is reserved for waiting events of %s; choose another name", show(of))
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
		v.problem("events has every type that no other stream claims; remove the key")
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

// readType reads a type that a stream claims. No other stream may claim it.
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
		v.problem("%s is a type of Tidemill, whose stream is fixed; remove it", show(typ))
		return "", false
	}
	if first, ok := d.claimed[typ]; ok {
		v.problem("%s is claimed in %s by %s too; a type is on one stream, keep one", show(typ), first.at(), first.Path)
		return "", false
	}
	d.claimed[typ] = Problem{File: v.file, Line: v.node.Line, Path: v.path}
	return typ, true
}

const (
	off           = "off"
	defaultDedupe = 10 * time.Minute
	minDedupe     = time.Second
	maxDedupe     = 24 * time.Hour // the remembered events use Redis's memory
)

// takesOutside reports whether events from outside are published to a stream. Events that
// Tidemill writes itself are idempotent by id, and the gateway refuses them from others.
func takesOutside(s Stream) bool { return !s.Builtin || s.Name == tidemill.StreamEvents }

// dedupe returns the value in the files for a stream, or its default. It is called after all
// files have been read, because a default may depend on another file.
func (d *draft) dedupe(s Stream) time.Duration {
	if said, ok := d.dedupes[s.Name]; ok {
		return said
	}
	return dedupeOf(s)
}

// dedupeOf returns the default for a stream.
func dedupeOf(s Stream) time.Duration {
	if !takesOutside(s) {
		return 0
	}
	return defaultDedupe
}

func (d *draft) readDedupe(v value, s Stream) {
	if !takesOutside(s) {
		v.problem("the built-in stream %s takes no events from outside, so none of them repeat; remove the key", s.Name)
		return
	}
	text, ok := v.scalar()
	if !ok {
		return
	}
	window, err := parseDedupe(text)
	if err != nil {
		v.problem("%s", err)
		return
	}
	d.dedupes[s.Name] = window
}

// parseDedupe parses whole numbers with units, such as 10m, or "off". Helm turns a plain off
// into "false", so both mean the same.
func parseDedupe(s string) (time.Duration, error) {
	if s == off || s == "false" {
		return 0, nil
	}
	if !startsWithDigit(s) {
		return 0, fmt.Errorf("must be a time such as 10m, or off, not %s", show(s))
	}
	sum, err := sumSpans(s, maxDedupe, "is more than a day; write 24h or less", "write 24h or less")
	if err == nil && sum < minDedupe {
		err = fmt.Errorf("%s is less than a second; write 1s or more, or off", show(s))
	}
	return sum, err
}

// hashedDedupe returns an empty text if a stream has its default, even if a file writes the
// default, because the hash covers the meaning.
func hashedDedupe(s Stream) string {
	switch s.Dedupe {
	case dedupeOf(s):
		return ""
	case 0:
		return off
	}
	return showSpan(s.Dedupe)
}

// Parked returns the stream for this stream's events that could not be delivered yet. It always
// has as many partitions as this stream, because a parked event is written to the partition
// that it came from.
func (s Stream) Parked() Stream {
	return Stream{Name: tidemill.Parked(s.Name), Partitions: s.Partitions, Retention: s.Retention,
		Builtin: true, KeyOrdered: s.KeyOrdered}
}

// Parked returns, sorted by name, the parked streams that the triggers need. Parked streams are not
// in Streams, because they exist only for triggers.
func (c *Config) Parked() []Stream {
	read := map[string]bool{}
	homes := map[string]string{} // home of each type, because thousands of triggers may name the same few types
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

// HeldFor returns the streams for events that wait until a scorer has loaded their model, each
// with its source stream, sorted by name. Such a stream has as many partitions as its source,
// because waiting events stay in their partition.
func (c *Config) HeldFor() (all []Held) {
	for _, s := range c.Scorers {
		from, ok := c.Stream(s.From)
		if !ok {
			continue // cannot happen: a config without the stream is refused
		}
		held := from.Parked()
		held.Name = tidemill.ScorerParked(s.Name)
		all = append(all, Held{Stream: held, From: s.From, Scorer: s.Name})
	}
	return all
}

// Held is a stream for a scorer's waiting events.
type Held struct {
	Stream
	From   string // stream that the events came from
	Scorer string
}

// Scorer finds a scorer by its name.
func (c *Config) Scorer(name string) (Scorer, bool) {
	i := slices.IndexFunc(c.Scorers, func(s Scorer) bool { return s.Name == name })
	if i < 0 {
		return Scorer{}, false
	}
	return c.Scorers[i], true
}
