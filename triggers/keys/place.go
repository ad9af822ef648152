package keys

import (
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/config"
)

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
