package config

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Config is the user's whole configuration, with the defaults filled in. It is read only: when
// a file changes, a new Config is made.
type Config struct {
	Name      string     // name of the install
	Engine    string     // engine of models that no scorer serves: auto, go, onnxruntime
	Streams   []Stream   // sorted by name, with the built-in ones
	Triggers  []Trigger  // sorted by name
	Schedules []Schedule // sorted by name
	Pools     []Pool     // sorted by name, with the default one
	Recipes   []Recipe   // sorted by name
	Scorers   []Scorer   // sorted by name
}

// Stream is the wanted state of a stream.
type Stream struct {
	Name       string
	Partitions int
	Retention  time.Duration // time for which an event stays, or Forever
	Types      []string      // sorted types of outside events that are published to this stream
	Builtin    bool
	// KeyOrdered says that events of one key must stay in order. Then the partitions never grow
	// by themselves, because growth moves keys.
	KeyOrdered bool
	// Dedupe is how long an event from outside is remembered, so that the same event is not
	// stored twice; 0 turns this off.
	Dedupe time.Duration
}

// Default returns the config of a file that contains only its version.
func Default() *Config { return newDraft().config() }

// Names returns the names that the install uses outside the process.
func (c *Config) Names() (tidemill.Names, error) { return tidemill.NewNames(c.Name) }

// Stream finds a stream by its name.
func (c *Config) Stream(name string) (Stream, bool) {
	i := slices.IndexFunc(c.Streams, func(s Stream) bool { return s.Name == name })
	if i < 0 {
		return Stream{}, false
	}
	return c.Streams[i], true
}

// StreamFor returns the stream that events of a type are published to. For Tidemill's own types
// the catalogue names it. For other types it is the stream that claims the type, else events.
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

//go:embed examples/*.yaml
var embedded embed.FS

// Examples returns the example files of this package. Its tests parse them.
func Examples() fs.FS {
	sub, err := fs.Sub(embedded, "examples")
	if err != nil {
		return embedded // cannot happen: the folder's name is a valid path
	}
	return sub
}

const fileVersion = 1

// draft is the config while its files are read, one after the other.
type draft struct {
	place   Place
	name    string
	engine  string             // engine of models, unless a scorer has its own
	places  map[string]Problem // path → its place in a file, so that a duplicate names both places
	streams map[string]Stream
	claimed map[string]Problem       // type → the place where a stream claims it
	dedupes map[string]time.Duration // stream → the value in a file; the other streams have the default

	triggers  []Trigger
	schedules []Schedule
	pools     []Pool
	recipes   []Recipe
	scorers   []Scorer
	clauses   map[checkedClause]error // clause that has been checked → its error
	// Schedules and pools of all files, by name. Both maps are filled in once all files have been
	// read.
	scheduleOf map[string]Schedule
	poolOf     map[string]Pool
	// later are checks that need the content of all files. These checks run once all files have been
	// read.
	later []func()
}

func newDraft() *draft {
	d := &draft{name: tidemill.DefaultName, engine: engineAuto, places: map[string]Problem{},
		streams: map[string]Stream{}, claimed: map[string]Problem{}, dedupes: map[string]time.Duration{}, clauses: map[checkedClause]error{}}
	for _, s := range builtins() {
		d.streams[s.Name] = s
	}
	return d
}

// parse makes a config from one file or several.
func parse(place Place, sources ...source) (*Config, error) {
	r := new(report)
	d := newDraft()
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
	if whole { // otherwise a missing name may be in a file that could not be read
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

// index makes the lookup of schedules and pools fast for thousands of recipes.
func (d *draft) index() {
	d.scheduleOf, d.poolOf = make(map[string]Schedule, len(d.schedules)), map[string]Pool{}
	for _, s := range d.schedules {
		d.scheduleOf[s.Name] = s
	}
	for _, p := range d.allPools() {
		d.poolOf[p.Name] = p
	}
}

// config makes the Config from the draft.
func (d *draft) config() *Config {
	c := &Config{Name: d.name, Engine: d.engine}
	for _, s := range d.streams {
		s.Dedupe = d.dedupe(s)
		c.Streams = append(c.Streams, s)
	}
	slices.SortFunc(c.Streams, func(a, b Stream) int { return strings.Compare(a.Name, b.Name) })
	c.Triggers, c.Schedules, c.Pools, c.Recipes = d.triggers, d.schedules, d.allPools(), d.recipes
	c.Scorers = d.scorers
	for i := range c.Scorers {
		s := &c.Scorers[i]
		s.Engine = cmp.Or(s.Engine, d.engine)
		s.Replicas.setMax(d.streams[s.From].Partitions)
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

// read adds one file to the draft.
func (d *draft) read(v value) {
	v.versioned(
		field{"name", d.readName},
		field{"engine", d.readEngine},
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
	if !d.isOnlyFile(v.node, v) {
		return
	}
	s, ok := v.text()
	if !ok {
		return
	}
	if _, err := tidemill.NewNames(s); err != nil {
		v.problem("%s %s", show(s), trimName(err))
		return
	}
	d.name = s
}

func (d *draft) readEngine(v value) {
	if d.isOnlyFile(v.node, v) {
		readEngine(&d.engine)(v)
	}
}

// isOnlyFile reports a problem and returns false if another file also has this path.
func (d *draft) isOnlyFile(at *yaml.Node, v value) bool {
	here := Problem{File: v.file, Line: at.Line}
	if first, ok := d.places[v.path]; ok {
		v.problemAt(at, "is also in %s; keep one", first.at())
		return false
	}
	d.places[v.path] = here
	return true
}

// trimName removes the name that a domain error begins with, because the path already contains it.
func trimName(err error) string {
	if e, ok := err.(interface{ Unwrap() error }); ok {
		return e.Unwrap().Error()
	}
	return fmt.Sprint(err)
}
