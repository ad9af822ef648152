package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
)

// Caller is an authenticated caller with its rights. A Caller is immutable: a changed access file
// makes new callers.
type Caller struct {
	name   string
	grants []grant
}

// Everyone returns the caller of a gateway without access control: it has no name and all rights.
func Everyone() *Caller {
	return &Caller{grants: []grant{{roles: Approve.includedRoles()}}}
}

// Name returns the authid of the caller's actions; empty for [Everyone].
func (c *Caller) Name() string { return c.name }

// Has reports whether the caller has a role for at least some keys.
func (c *Caller) Has(r Role) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.has(r) })
}

// MayTouch reports whether the caller has a role for a key. An object without a key has the key "";
// only callers with the role for all keys may touch it.
func (c *Caller) MayTouch(r Role, key string) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.mayTouch(r, key) })
}

// MayRun returns the greatest priority that the caller may give a run of a recipe and a key. A run without a key
// has the key "". The error is why the caller may not start, cancel or retry the run.
func (c *Caller) MayRun(recipe, key string) (priority int, err error) {
	err = errors.New("you may not operate on this key")
	for i := range c.grants {
		g := &c.grants[i]
		switch {
		case !g.mayTouch(Operate, key):
			continue
		case g.team == nil:
			return config.MaxAskedPriority, nil
		case !anyMatches(g.team.recipes, recipe):
			if err != nil {
				err = fmt.Errorf("the team %s may not operate on the recipe %s, only on %s", g.team.name, clipText(recipe), listed(g.team.recipes))
			}
		case err != nil || g.team.priority > priority:
			priority, err = g.team.priority, nil
		}
	}
	return priority, err
}

// MayForget reports whether the caller may delete all that belongs to a key. The members of a team may not, because
// that deletes the work of other recipes too.
func (c *Caller) MayForget(key string) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.team == nil && g.mayTouch(Operate, key) })
}

// AllKeys reports whether the caller has a role for all keys.
func (c *Caller) AllKeys(r Role) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.has(r) && g.keys == nil })
}

// KeyLimits reports whether one of the caller's grants for a role is limited to some keys.
func (c *Caller) KeyLimits(r Role) bool {
	return slices.ContainsFunc(c.grants, func(g grant) bool { return g.has(r) && g.keys != nil })
}

// MayPublish returns nil if one of the caller's grants allows the whole event. The parameter taken
// has the keys that recipes and scorers take from other places of the event than its subject and
// its partitionkey; a grant with a limit of keys must allow them too. The error is a [*Denied].
func (c *Caller) MayPublish(v *broker.View, taken []keys.Taken) error {
	var why *Denied
	for i := range c.grants {
		if !c.grants[i].has(Publish) {
			continue
		}
		d := c.grants[i].deniedAttribute(v)
		if d == nil {
			d = c.grants[i].deniedKey(taken)
		}
		if d == nil {
			return nil
		}
		if why == nil || d.allowsMore(why) {
			why = d
		}
	}
	if why == nil {
		why = &Denied{}
	}
	why.caller = c.name
	return why
}

// MayEnd returns nil if the caller may publish an event that ends the key in its subject. Such an
// event deletes as much as a request to forget the key, so it needs the same right. The error is a
// [*Denied].
func (c *Caller) MayEnd(v *broker.View) error {
	if c.MayForget(v.Subject) {
		return nil
	}
	return &Denied{caller: c.name, attribute: attrType, value: v.Type, ends: true}
}

// Role is a right to a kind of action.
type Role string

// The roles. Approve includes Operate, which includes Publish and Read. Read includes Metrics.
const (
	Publish Role = "publish" // publish outside events
	Metrics Role = "metrics" // read the metrics of the process
	Read    Role = "read"    // read streams, runs, models and their metrics
	Operate Role = "operate" // start, cancel and replay
	Approve Role = "approve" // promote, roll back and pin models
)

// includedRoles returns all roles that r includes; nil for an unknown role.
func (r Role) includedRoles() []Role {
	switch r {
	case Approve:
		return []Role{Approve, Operate, Publish, Read, Metrics}
	case Operate:
		return []Role{Operate, Publish, Read, Metrics}
	case Read:
		return []Role{Read, Metrics}
	case Publish, Metrics:
		return []Role{r}
	}
	return nil
}

// grant is a set of roles with their limits. A caller's grants are checked one by one: a right to
// operate one key and a right to read all keys must not add up to operating all.
type grant struct {
	roles                []Role
	types, sources, keys []pattern // limits; nil for no limit
	team                 *team     // team that gives the rights; nil if the caller's own entry does
}

// team limits the rights of a team's members.
type team struct {
	name     string
	recipes  []pattern // recipes whose runs they may start, cancel and retry
	priority int       // greatest priority of those runs
}

// join adds the rights of a team's members. A team always has a limit of keys, so its members may do nothing that
// concerns all keys. A team has no limits of types and sources, and an event starts runs of every recipe. So it
// gives a member no more than the events of the member's own role, for the team's keys.
func (c *Caller) join(t config.Team) {
	keys, is := patterns(t.Keys), &team{t.Name, patterns(t.Recipes), t.Priority}
	for _, own := range c.grants {
		if own.team == nil && own.has(Publish) {
			c.grants = append(c.grants, grant{roles: []Role{Publish}, types: own.types, sources: own.sources, keys: keys, team: is})
		}
	}
	c.grants = append(c.grants, grant{roles: []Role{Operate, Read, Metrics}, keys: keys, team: is})
}

func newGrant(r config.Rights) grant {
	g := grant{types: patterns(r.Types), sources: patterns(r.Sources), keys: patterns(r.Keys)}
	for _, role := range r.Roles {
		g.roles = append(g.roles, Role(role).includedRoles()...)
	}
	return g
}

func (g *grant) has(r Role) bool { return slices.Contains(g.roles, r) }

func (g *grant) mayTouch(r Role, key string) bool {
	return g.has(r) && anyMatches(g.keys, key) && (key != "" || g.keys == nil)
}

// pattern matches a text, or texts with a prefix.
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

// anyMatches reports whether a pattern matches a value. If all is nil, every value matches.
func anyMatches(all []pattern, value string) bool {
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

// deniedAttribute returns the attribute of an event that the grant does not allow; nil if the grant
// allows the event.
func (g *grant) deniedAttribute(v *broker.View) *Denied {
	switch {
	case !anyMatches(g.types, v.Type):
		return &Denied{attribute: attrType, value: v.Type, allowed: g.types}
	case !anyMatches(g.sources, v.Source):
		return &Denied{attribute: attrSource, value: v.Source, allowed: g.sources}
	case g.keys == nil:
		return nil
	}
	// Consumers may use partitionkey or subject as the key, so both must be allowed. An event
	// without both would reach the readers of every key.
	key, keyed := v.Attribute(attrPartitionKey)
	switch {
	case keyed && !anyMatches(g.keys, key):
		return &Denied{attribute: attrPartitionKey, value: key, allowed: g.keys}
	case v.Subject != "" && !anyMatches(g.keys, v.Subject):
		return &Denied{attribute: attrSubject, value: v.Subject, allowed: g.keys}
	case !keyed && v.Subject == "":
		return &Denied{attribute: attrSubject, allowed: g.keys}
	}
	return nil
}

// deniedKey returns the first taken key that the grant does not allow; nil if it allows all of them.
func (g *grant) deniedKey(taken []keys.Taken) *Denied {
	for i := range taken {
		if t := &taken[i]; !anyMatches(g.keys, t.Key) {
			return &Denied{attribute: t.Place, value: t.Key, allowed: g.keys, by: t.By}
		}
	}
	return nil
}

const (
	attrType         = "type"
	attrSource       = "source"
	attrSubject      = "subject"
	attrPartitionKey = tidemill.AttrPartitionKey
)

// Denied is the reason why a caller may not publish an event.
type Denied struct {
	caller    string
	attribute string // empty if the caller may publish no event
	value     string // empty if the attribute is missing
	allowed   []pattern
	by        string // recipe or scorer that takes the value as its key; empty if none does
	ends      bool   // the event would end its key
}

// Attribute returns the attribute that is not allowed, or the place in the data such as data.bot;
// empty if the caller may publish no event.
func (d *Denied) Attribute() string { return d.attribute }

// Error says which values are allowed.
func (d *Denied) Error() string {
	switch {
	case d.attribute == "":
		return fmt.Sprintf("%s may not publish: that needs the role %s", d.caller, Publish)
	case d.ends:
		return fmt.Sprintf("%s may not publish the type %s for this key: it deletes the key's runs, models and data, and that needs the role %s for the key, which no team gives", d.caller, clipText(d.value), Operate)
	case d.by != "":
		return fmt.Sprintf("%s may not publish this event: %s takes its key from %s, which is %s, and %s may publish only for the keys %s", d.caller, d.by, d.attribute, clipText(d.value), d.caller, d.list())
	case d.value == "":
		return fmt.Sprintf("%s may publish only for some keys (%s), and the event names none: give it a %s", d.caller, d.list(), d.attribute)
	}
	return fmt.Sprintf("%s may not publish the %s %s, only %s", d.caller, d.attribute, clipText(d.value), d.list())
}

const maxListed = 8

func (d *Denied) list() string { return listed(d.allowed) }

// listed returns the first patterns, and the number of the others.
func listed(allowed []pattern) string {
	var all []string
	for _, p := range allowed[:min(len(allowed), maxListed)] {
		all = append(all, p.String())
	}
	text := strings.Join(all, ", ")
	if more := len(allowed) - len(all); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// allowsMore reports whether d's grant allows more of the event.
func (d *Denied) allowsMore(than *Denied) bool { return d.rank() > than.rank() }

// rank is the number of checks that the event has passed.
func (d *Denied) rank() int {
	order := []string{"", attrType, attrSource, attrPartitionKey, attrSubject}
	if d.by != "" {
		return len(order)
	}
	return slices.Index(order, d.attribute)
}

// clipText quotes the beginning of an unchecked text.
func clipText(s string) string {
	const shown = 80
	if len(s) > shown {
		return fmt.Sprintf("%q…", s[:shown])
	}
	return fmt.Sprintf("%q", s)
}
