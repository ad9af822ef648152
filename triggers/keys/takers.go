package keys

import (
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/config"
	"tidemill.dev/triggers/filter"
)

// Taken is a key that a recipe or a scorer takes from an event.
type Taken struct {
	By    string // recipe or scorer, such as "the recipe fraud"
	Place string // place of the key in the event, such as data.bot
	Key   string
}

// Takers finds the keys that the recipes and scorers of a config take from events, and the events
// that end their key. A caller or a subscriber may be limited to some keys, and could otherwise
// name another key in the data. Takers is read-only and safe for concurrent use.
type Takers struct {
	config  *config.Config
	streams map[string]*ofStream
}

// ofStream has the takers that read one stream.
type ofStream struct {
	rules  []filter.Rule
	takers []taker // taker of each rule
	index  *filter.Index
}

type taker struct {
	by    string
	place Place
	ends  bool // the function forget ends the key in the subject; place is unused
}

// NewTakers returns the takers of a config.
func NewTakers(c *config.Config) *Takers {
	t := &Takers{config: c, streams: map[string]*ofStream{}}
	for _, r := range c.Recipes {
		if !elsewhere(r.Key) {
			continue
		}
		by := taker{by: "the recipe " + r.Name, place: NewPlace(r.Key)}
		for _, w := range r.When {
			if w.Schedule != "" {
				continue // a tick has its key as its subject
			}
			t.addWhen(w.When, by)
		}
	}
	for _, s := range c.Scorers {
		if elsewhere(s.Key) && strings.Contains(s.Model, "{key}") {
			t.add(s.From, filter.Rule{Types: s.Types}, taker{by: "the scorer " + s.Name, place: NewPlace(s.Key)})
		}
	}
	for _, one := range c.Triggers {
		if one.To.Function != config.FunctionForget {
			continue
		}
		for _, w := range one.When {
			t.addWhen(w, taker{ends: true})
		}
	}
	for _, s := range t.streams {
		s.index = filter.NewIndex(s.rules)
	}
	return t
}

// elsewhere reports whether a key comes from another place than the subject and the partitionkey.
func elsewhere(place string) bool {
	switch place {
	case "", config.KeySubject, config.KeyNone, tidemill.AttrPartitionKey:
		return false
	}
	return true
}

func (t *Takers) addWhen(w config.When, by taker) {
	var where *filter.Filter // nil matches every event
	if w.Where != "" {
		where, _ = filter.Compile(w.Where) // cannot fail: the reader of the config has compiled it
	}
	for stream, types := range t.config.TypesByStream(w) {
		t.add(stream, filter.Rule{Types: types, Where: where}, by)
	}
}

func (t *Takers) add(stream string, r filter.Rule, by taker) {
	s := t.streams[stream]
	if s == nil {
		s = &ofStream{}
		t.streams[stream] = s
	}
	s.rules, s.takers = append(s.rules, r), append(s.takers, by)
}

// Taken returns the keys that are taken from an event on a stream, besides its subject and its
// partitionkey. An empty stream means the home of the event's type.
func (t *Takers) Taken(stream string, v *broker.View) (all []Taken) {
	for by := range t.matching(stream, v) {
		if by.ends {
			continue
		}
		if key := by.place.Of(v); key != "" {
			all = append(all, Taken{By: by.by, Place: by.place.String(), Key: strings.Clone(key)})
		}
	}
	return all
}

// Ends reports whether an event ends the key in its subject, with everything that belongs to the
// key. A bot-deleted always does, because a config may get its first recipe later.
func (t *Takers) Ends(stream string, v *broker.View) bool {
	if v.Type == tidemill.TypeBotDeleted {
		return true
	}
	for by := range t.matching(stream, v) {
		if by.ends {
			return true
		}
	}
	return false
}

// matching iterates over the takers that get an event.
func (t *Takers) matching(stream string, v *broker.View) func(yield func(*taker) bool) {
	return func(yield func(*taker) bool) {
		if stream == "" {
			stream = t.config.StreamFor(v.Type)
		}
		s := t.streams[stream]
		if s == nil {
			return
		}
		for _, n := range s.index.Match(v, nil) {
			if !yield(&s.takers[n]) {
				return
			}
		}
	}
}

// Place is where an event has a value, such as its key.
type Place struct {
	name string   // place as in the config
	path []string // path in the data; nil for an attribute
}

// NewPlace reads a place as the config has it: the name of an attribute, or data.PATH for a text,
// number or boolean in the JSON data. The parts of the path are names of members and indexes of
// elements.
func NewPlace(name string) Place {
	p := Place{name: name}
	if path, in := strings.CutPrefix(name, config.KeyData); in {
		p.path = strings.Split(path, ".")
	}
	return p
}

// String returns the place as the config has it.
func (p *Place) String() string { return p.name }

// Of returns the value in an event. It is empty if the event has no such value. It may point into
// the event. The data is scanned and never decoded, because data of a megabyte would need a
// hundred times its size.
func (p *Place) Of(v *broker.View) string {
	switch {
	case p.path != nil:
		return jsonscan.TextAt(v.Data, p.path)
	case p.name == config.KeyNone:
		return ""
	}
	text, _ := v.Attribute(p.name)
	return text
}
