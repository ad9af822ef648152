package access

import (
	"fmt"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// Caller is who asks, and what they may do. It never changes: a changed access
// file makes new ones.
type Caller struct {
	name   string
	grants []grant
}

// Everyone is the caller at a door that is open: it has no name and may do
// everything.
func Everyone() *Caller {
	return &Caller{grants: []grant{{roles: Approve.covered()}}}
}

// Name is the authid of what the caller does; empty for [Everyone].
func (c *Caller) Name() string { return c.name }

// Has reports whether the caller has a role, for some keys at least.
func (c *Caller) Has(r Role) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.has(r) })
}

// MayTouch reports whether the caller may do in a role what has to do with a
// key. Something without a key has the key "", which is for those alone whom no
// keys limit.
func (c *Caller) MayTouch(r Role, key string) bool {
	for i := range c.grants {
		if g := &c.grants[i]; g.has(r) && allow(g.keys, key) && (key != "" || g.keys == nil) {
			return true
		}
	}
	return false
}

// AllKeys reports whether no keys limit the caller in a role.
func (c *Caller) AllKeys(r Role) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.has(r) && g.keys == nil })
}

// MayPublish says why the caller may not publish an event, as a [*Denied]. It
// may if one of its grants reaches the whole event.
func (c *Caller) MayPublish(v *broker.View) error {
	var why *Denied
	for i := range c.grants {
		if !c.grants[i].has(Publish) {
			continue
		}
		d := c.grants[i].denies(v)
		if d == nil {
			return nil
		}
		if why == nil || d.further(why) {
			why = d
		}
	}
	if why == nil {
		why = &Denied{}
	}
	why.caller = c.name
	return why
}

// Role is a kind of act.
type Role string

// The roles. Whoever may approve may operate too, and whoever may operate may
// publish and read.
const (
	Publish Role = "publish" // events, from outside
	Read    Role = "read"    // streams, runs, models and their metrics
	Operate Role = "operate" // start, cancel and replay
	Approve Role = "approve" // promote, roll back and pin what serves
)

// covered is every role that this one stands for. One that is not known stands
// for nothing.
func (r Role) covered() []Role {
	switch r {
	case Approve:
		return []Role{Approve, Operate, Publish, Read}
	case Operate:
		return []Role{Operate, Publish, Read}
	case Publish, Read:
		return []Role{r}
	}
	return nil
}

// grant is some roles and what they reach. A caller may have several, and each
// counts for itself: who may operate one key and read all must not operate all.
type grant struct {
	roles                []Role
	types, sources, keys []pattern // nil is everything
}

func newGrant(r config.Rights) grant {
	g := grant{types: patterns(r.Types), sources: patterns(r.Sources), keys: patterns(r.Keys)}
	for _, role := range r.Roles {
		g.roles = append(g.roles, Role(role).covered()...)
	}
	return g
}

func (g *grant) has(r Role) bool { return slices.Contains(g.roles, r) }

// pattern is a text, or the beginning of one.
type pattern struct {
	text   string
	prefix bool
}

func patterns(texts []string) []pattern {
	var all []pattern
	for _, t := range texts {
		start, prefix := strings.CutSuffix(t, "*")
		all = append(all, pattern{start, prefix})
	}
	return all
}

func (p pattern) String() string {
	if p.prefix {
		return p.text + "*"
	}
	return p.text
}

// allow reports whether a value is among the patterns, where there are any.
func allow(all []pattern, value string) bool {
	if all == nil {
		return true
	}
	for _, p := range all {
		if p.text == value || p.prefix && strings.HasPrefix(value, p.text) {
			return true
		}
	}
	return false
}

// denies says what of an event the grant does not reach; nil if it reaches it
// all.
func (g *grant) denies(v *broker.View) *Denied {
	switch {
	case !allow(g.types, v.Type):
		return &Denied{attribute: attrType, value: v.Type, allowed: g.types}
	case !allow(g.sources, v.Source):
		return &Denied{attribute: attrSource, value: v.Source, allowed: g.sources}
	case g.keys == nil:
		return nil
	}
	// Consumers key by partitionkey or by subject as they like, so neither may
	// name what the caller must not touch. An event without both would reach
	// every key's reader.
	key, keyed := v.Attribute(attrPartitionKey)
	switch {
	case keyed && !allow(g.keys, key):
		return &Denied{attribute: attrPartitionKey, value: key, allowed: g.keys}
	case v.Subject != "" && !allow(g.keys, v.Subject):
		return &Denied{attribute: attrSubject, value: v.Subject, allowed: g.keys}
	case !keyed && v.Subject == "":
		return &Denied{attribute: attrSubject, allowed: g.keys}
	}
	return nil
}

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
