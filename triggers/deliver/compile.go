package deliver

import (
	"fmt"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/letters"
	"tidemill.dev/triggers/match"
)

// compilePlans makes, for every stream that a trigger reads, the plan of which
// triggers want which of its events.
func compilePlans(c *config.Config) (map[string]*plan, error) {
	drafts := map[string]*draft{}
	for _, t := range c.Triggers {
		for n, w := range t.When {
			var where *match.Filter
			if w.Where != "" {
				var err error
				if where, err = match.Compile(w.Where); err != nil {
					return nil, fmt.Errorf("trigger %s: filter %d: %w", t.Name, n+1, err)
				}
			}
			for stream, types := range typesByStream(c, w) {
				if drafts[stream] == nil {
					drafts[stream] = &draft{}
				}
				drafts[stream].add(t.Name, match.Rule{Types: types, Where: where})
			}
		}
	}
	plans := map[string]*plan{}
	for stream, d := range drafts {
		plans[stream] = d.plan()
	}
	return plans, nil
}

// typesByStream are the types that a filter wants, by the stream where they are
// read. None is all.
func typesByStream(c *config.Config, w config.When) map[string][]string {
	if w.Stream != "" {
		return map[string][]string{w.Stream: w.Types}
	}
	all := map[string][]string{}
	for _, typ := range w.Types {
		home := c.StreamFor(typ)
		all[home] = append(all[home], typ)
	}
	return all
}

// draft collects a stream's rules.
type draft struct {
	triggers []string
	rules    []match.Rule
	of       []int // the trigger of each rule
}

// add adds a trigger's rule. A trigger's rules come one behind the other.
func (d *draft) add(trigger string, r match.Rule) {
	if n := len(d.triggers); n == 0 || d.triggers[n-1] != trigger {
		d.triggers = append(d.triggers, trigger)
	}
	d.rules = append(d.rules, r)
	d.of = append(d.of, len(d.triggers)-1)
}

func (d *draft) plan() *plan {
	index, of := match.NewIndex(d.rules), d.of
	return &plan{triggers: d.triggers, match: func(v *broker.View, dst []int) []int {
		had := len(dst)
		if dst = index.Match(v, dst); len(dst) > had && letters.OfLetter(v) {
			return dst[:had] // or a trigger on letters whose subscriber fails would make letters of letters for ever
		}
		for n := had; n < len(dst); n++ {
			dst[n] = of[dst[n]] // rules ascend, so their triggers do
		}
		return dst[:had+len(slices.Compact(dst[had:]))]
	}}
}

// deserted is the plan of a stream that no trigger reads any more.
func deserted() *plan {
	return &plan{match: func(_ *broker.View, dst []int) []int { return dst }}
}

// byName are the config's triggers.
func byName(c *config.Config) map[string]*config.Trigger {
	all := make(map[string]*config.Trigger, len(c.Triggers))
	for n := range c.Triggers {
		all[c.Triggers[n].Name] = &c.Triggers[n]
	}
	return all
}
