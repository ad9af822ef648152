package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

const fileVersion = 1

// draft is a config while its files are read, one after the other.
type draft struct {
	to      *report
	place   Place
	name    string
	places  map[string]Problem // path → where it stands, to name both of two
	streams map[string]Stream
	claimed map[string]Problem       // type → where a stream claims it
	dedupes map[string]time.Duration // stream → what a file says; the others have the default

	triggers  []Trigger
	schedules []Schedule
	pools     []Pool
	recipes   []Recipe
	scorers   []Scorer
	clauses   map[string]error // of gates, that have been read → what is wrong
	// Of the schedules and pools of all files, once these have been read.
	scheduleOf map[string]Schedule
	poolOf     map[string]Pool
	// later are checks against what other files may say, for when all have been read.
	later []func()
}

func newDraft(to *report) *draft {
	d := &draft{to: to, name: tidemill.DefaultName, places: map[string]Problem{},
		streams: map[string]Stream{}, claimed: map[string]Problem{}, dedupes: map[string]time.Duration{}, clauses: map[string]error{}}
	for _, s := range builtins() {
		d.streams[s.Name] = s
	}
	return d
}

// parse makes a config of one file or several.
func parse(place Place, sources ...source) (*Config, error) {
	r := new(report)
	d := newDraft(r)
	d.place = place
	whole := true
	for _, s := range sources {
		root := r.document(s)
		if root == nil {
			whole = false
			continue
		}
		v := value{node: root, file: s.name, to: r}
		strict(v)
		d.read(v)
	}
	if whole { // else what is missing may stand in what could not be read
		d.index()
		for _, check := range d.later {
			check()
		}
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return d.config(), nil
}

// index lets thousands of recipes find what they name.
func (d *draft) index() {
	d.scheduleOf, d.poolOf = make(map[string]Schedule, len(d.schedules)), map[string]Pool{}
	for _, s := range d.schedules {
		d.scheduleOf[s.Name] = s
	}
	for _, p := range d.allPools() {
		d.poolOf[p.Name] = p
	}
}

// config is the draft as it stands.
func (d *draft) config() *Config {
	c := &Config{Name: d.name}
	for _, s := range d.streams {
		s.Dedupe = d.dedupe(s)
		c.Streams = append(c.Streams, s)
	}
	slices.SortFunc(c.Streams, func(a, b Stream) int { return strings.Compare(a.Name, b.Name) })
	c.Triggers, c.Schedules, c.Pools, c.Recipes = d.triggers, d.schedules, d.allPools(), d.recipes
	c.Scorers = d.scorers
	for i := range c.Scorers {
		s := &c.Scorers[i]
		s.Replicas.settle(d.streams[s.From].Partitions)
	}
	for _, r := range d.recipes {
		if len(r.When) > 0 {
			c.Triggers = append(c.Triggers, triggerOf(r))
		}
	}
	c.Triggers = append(c.Triggers, ownTriggers(d.recipes)...)
	slices.SortFunc(c.Triggers, func(a, b Trigger) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Schedules, func(a, b Schedule) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Recipes, func(a, b Recipe) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Scorers, func(a, b Scorer) int { return strings.Compare(a.Name, b.Name) })
	return c
}

// read takes in one file.
func (d *draft) read(v value) {
	v.versioned(
		field{"name", d.readName},
		field{"streams", d.readStreams},
		field{"triggers", d.readTriggers},
		field{"schedules", d.readSchedules},
		field{"pools", d.readPools},
		field{"recipes", d.readRecipes},
		field{"scorers", d.readScorers},
	)
}

func readVersion(v value) {
	n := v.node
	switch {
	case n.Kind == yaml.AliasNode:
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || !plainDigits.MatchString(n.Value):
		v.problem("must be the number %d, not %s", fileVersion, describe(n))
	case n.Value != strconv.Itoa(fileVersion):
		v.problem("is %s, and this program reads %d; write %d, or take a newer tidemill", n.Value, fileVersion, fileVersion)
	}
}

func (d *draft) readName(v value) {
	if !d.only(v.node, v) {
		return
	}
	s, ok := v.text()
	if !ok {
		return
	}
	if _, err := tidemill.NewNames(s); err != nil {
		v.problem("%s %s", show(s), inner(err))
		return
	}
	d.name = s
}

// only reports what another file has at the same path too.
func (d *draft) only(at *yaml.Node, v value) bool {
	here := Problem{File: v.file, Line: at.Line}
	if first, ok := d.places[v.path]; ok {
		v.problemAt(at, "stands in %s too; keep one", first.at())
		return false
	}
	d.places[v.path] = here
	return true
}

// inner drops the name that a domain error begins with, for the path says it.
func inner(err error) string {
	if e, ok := err.(interface{ Unwrap() error }); ok {
		return e.Unwrap().Error()
	}
	return fmt.Sprint(err)
}
