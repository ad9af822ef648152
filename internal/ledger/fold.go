package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

// changes are what some facts of one partition change in Redis: the difference
// between before and after, however many facts there were between.
type changes struct {
	partition  int32
	from, next int64
	makings    map[string][]byte // recipe/key → JSON
	runs       []string          // id, recipe, value; see runValue
	live       []string          // id, value; see liveValue
	pending    []string          // recipe/key, recipe, value; see pendingValue
	keys       []string          // recipe, key; of new makings
}

// folding folds the facts of one making.
type folding struct {
	member string
	making *tidemill.Making
	before outline
	ended  []*tidemill.Run
	forgot []string
}

// outline is what Redis lists of a making, besides what has ended.
type outline struct {
	fresh   bool              // nothing is known of it
	runs    map[string]string // by id
	live    map[string]string // by id
	pending string
}

func outlineOf(m *tidemill.Making) outline {
	o := outline{fresh: m.Next == 0, runs: map[string]string{}, live: map[string]string{}}
	for _, r := range []*tidemill.Run{m.Live, m.Waiting} {
		if r == nil {
			continue
		}
		o.runs[r.ID] = runValue(r)
		if v := liveValue(r); v != "" {
			o.live[r.ID] = v
		}
	}
	if r, due := m.DueRun(); r != nil {
		o.pending = pendingValue(r, due)
	}
	return o
}

// runValue is where a run stands in the lists, and where it is: in its making.
func runValue(r *tidemill.Run) string {
	return placed(r) + tidemill.RunKey(r.Recipe, r.Key)
}

// endedValue is where a run stands in the lists, and the run itself.
func endedValue(r *tidemill.Run) (string, error) {
	whole, err := json.Marshal(r)
	return placed(r) + string(whole), err
}

func placed(r *tidemill.Run) string {
	return strconv.FormatInt(r.Asking.UnixMilli(), 10) + " " + string(r.State) + " "
}

// liveValue tells which attempt is under way where; it is 0 of a run that
// settles. It is empty where nobody has to watch.
func liveValue(r *tidemill.Run) string {
	number := 0
	switch {
	case r.State == tidemill.RunRunning:
		number = r.Attempt().Number
	case r.State != tidemill.RunSettling:
		return ""
	}
	return strconv.Itoa(number) + " " + field(r.Pool) + " " + tidemill.RunKey(r.Recipe, r.Key)
}

// field keeps a pool's name one word. Config allows no other.
func field(s string) string { return strings.Join(strings.Fields(s), "-") }

// pendingValue is how a run queues. Its time is never before it is due.
func pendingValue(r *tidemill.Run, due time.Time) string {
	return strconv.Itoa(r.Priority) + " " + strconv.FormatInt(millisUp(due), 10) + " " + r.ID
}

func millisUp(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }

// fold folds the facts of a partition in, which come in their order.
func (c *changes) fold(p *part) error {
	open := make(map[string]*folding, len(p.makings))
	order := make([]*folding, 0, len(p.makings))
	for i := range p.facts {
		member := tidemill.RunKey(p.facts[i].Recipe, p.facts[i].Key)
		f := open[member]
		if f == nil {
			m := p.makings[member]
			f = &folding{member: member, making: m, before: outlineOf(m)}
			open[member], order = f, append(order, f)
		}
		f.apply(p.facts[i])
	}
	c.makings = make(map[string][]byte, len(order))
	for _, f := range order {
		if err := c.add(f); err != nil {
			return fmt.Errorf("write the making of %s: %w", f.member, err)
		}
	}
	return nil
}

func (f *folding) apply(fact tidemill.Fact) {
	v := f.making.Apply(fact)
	if v.Ended != nil {
		f.ended = append(f.ended, v.Ended)
	}
	if v.Forgotten != "" {
		f.forgot = append(f.forgot, v.Forgotten)
	}
}

// add writes down what is different.
func (c *changes) add(f *folding) error {
	m := f.making
	whole, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.makings[f.member] = whole
	after := outlineOf(m)
	if f.before.fresh {
		c.keys = append(c.keys, m.Recipe, m.Key)
	}
	if after.pending != f.before.pending {
		c.pending = append(c.pending, f.member, m.Recipe, after.pending)
	}
	for id, v := range after.live {
		if f.before.live[id] != v {
			c.live = append(c.live, id, v)
		}
	}
	for id := range f.before.live {
		if after.live[id] == "" {
			c.live = append(c.live, id, "")
		}
	}
	for id, v := range after.runs {
		if f.before.runs[id] != v {
			c.runs = append(c.runs, id, m.Recipe, v)
		}
	}
	return c.addEnded(f)
}

// addEnded writes the runs that have ended, but for those that were forgotten
// at once.
func (c *changes) addEnded(f *folding) error {
	for _, id := range f.forgot {
		if f.before.runs[id] != "" || !slices.ContainsFunc(f.ended, func(r *tidemill.Run) bool { return r.ID == id }) {
			c.runs = append(c.runs, id, f.making.Recipe, "") // Redis knows of it
		}
	}
	for _, r := range f.ended {
		if slices.Contains(f.forgot, r.ID) {
			continue
		}
		v, err := endedValue(r)
		if err != nil {
			return err
		}
		c.runs = append(c.runs, r.ID, f.making.Recipe, v)
	}
	return nil
}
