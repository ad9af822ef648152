package access

import (
	"fmt"
	"slices"
	"strings"

	"tidemill.dev"
)

const (
	attrType         = "type"
	attrSource       = "source"
	attrSubject      = "subject"
	attrPartitionKey = tidemill.AttrPartitionKey
)

// Denied is why a caller may not publish an event.
type Denied struct {
	caller    string
	attribute string // empty if it may publish nothing
	value     string // empty if the attribute is missing
	allowed   []pattern
}

// Attribute is the attribute at fault; empty if the caller may publish no event
// at all.
func (d *Denied) Attribute() string { return d.attribute }

// Error says what is allowed instead.
func (d *Denied) Error() string {
	switch {
	case d.attribute == "":
		return fmt.Sprintf("%s may not publish: that needs the role %s", d.caller, Publish)
	case d.value == "":
		return fmt.Sprintf("%s may publish only for some keys (%s), and the event names none: give it a %s", d.caller, d.list(), d.attribute)
	}
	return fmt.Sprintf("%s may not publish the %s %s, only %s", d.caller, d.attribute, clip(d.value), d.list())
}

const maxListed = 8

func (d *Denied) list() string {
	var all []string
	for _, p := range d.allowed[:min(len(d.allowed), maxListed)] {
		all = append(all, p.String())
	}
	text := strings.Join(all, ", ")
	if more := len(d.allowed) - len(all); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// further reports whether d is nearer to an event that is allowed.
func (d *Denied) further(than *Denied) bool {
	order := []string{"", attrType, attrSource, attrPartitionKey, attrSubject}
	return slices.Index(order, d.attribute) > slices.Index(order, than.attribute)
}

// clip quotes the beginning of text that nobody has checked.
func clip(s string) string {
	const shown = 80
	if len(s) > shown {
		return fmt.Sprintf("%q…", s[:shown])
	}
	return fmt.Sprintf("%q", s)
}
