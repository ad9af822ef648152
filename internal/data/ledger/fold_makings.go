package ledger

import (
	"encoding/json"
	"slices"

	"tidemill.dev"
)

// folding folds the facts of one making.
type folding struct {
	member string
	making *tidemill.Making
	before outline
	listed []string                 // runs that had ended before
	ended  map[string]*tidemill.Run // that have, and are still named
	forgot map[string]bool          // ids that are not any more
}

func foldingOf(member string, m *tidemill.Making) *folding {
	return &folding{member: member, making: m, before: outlineOf(m), listed: slices.Clone(m.Ended)}
}

func (f *folding) apply(fact tidemill.Fact) {
	v := f.making.Apply(fact)
	if v.Ended != nil {
		if f.ended == nil {
			f.ended = map[string]*tidemill.Run{}
		}
		f.ended[v.Ended.ID] = v.Ended
		delete(f.forgot, v.Ended.ID)
	}
	for _, id := range v.Forgotten {
		if f.forgot == nil {
			f.forgot = map[string]bool{}
		}
		f.forgot[id] = true
		delete(f.ended, id)
	}
}

// add writes down what is different.
func (c *changes) add(f *folding) error {
	m := f.making
	whole, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.states[place{hashMakings, f.member}] = whole
	after := outlineOf(m)
	if after.key != f.before.key {
		c.keys = append(c.keys, m.Recipe, m.Key, yes(after.key))
	}
	if after.pending != f.before.pending {
		c.pending = append(c.pending, f.member, m.Recipe, after.pending)
	}
	c.addLive(&f.before, &after)
	for id := range f.forgot {
		if after.run(id) == nil && (f.before.run(id) != nil || slices.Contains(f.listed, id)) {
			c.rows = append(c.rows, runRow{0, id, m.Recipe, ""})
		}
	}
	for i := range after.runs {
		o := &after.runs[i]
		if was := f.before.run(o.id); was == nil || was.value != o.value {
			c.rows = append(c.rows, runRow{o.asked, o.id, m.Recipe, o.value})
		}
	}
	for id, r := range f.ended {
		v, err := endedValue(r)
		if err != nil {
			return err
		}
		c.rows = append(c.rows, runRow{r.Asked[0], id, m.Recipe, v})
	}
	return nil
}

func (c *changes) addLive(before, after *outline) {
	for _, o := range after.runs {
		if was := before.run(o.id); o.live != "" && (was == nil || was.live != o.live) {
			c.live = append(c.live, o.id, o.live)
		}
	}
	for _, o := range before.runs {
		if is := after.run(o.id); o.live != "" && (is == nil || is.live == "") {
			c.live = append(c.live, o.id, "")
		}
	}
}

// yes is how the scripts are told whether something is so.
func yes(is bool) string {
	if is {
		return "1"
	}
	return ""
}
