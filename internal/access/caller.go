package access

import (
	"slices"

	"tidemill.dev/broker"
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
