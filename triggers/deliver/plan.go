package deliver

import (
	"fmt"
	"maps"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/deadletters"
	"tidemill.dev/triggers/filter"
)

// compilePlans returns a plan for every stream that a trigger reads: it finds the
// triggers that match an event.
func compilePlans(c *config.Config) (map[string]*plan, error) {
	drafts := map[string]*planBuilder{}
	for _, t := range c.Triggers {
		for n, w := range t.When {
			var where *filter.Filter
			if w.Where != "" {
				var err error
				if where, err = filter.Compile(w.Where); err != nil {
					return nil, fmt.Errorf("trigger %s: filter %d: %w", t.Name, n+1, err)
				}
			}
			for stream, types := range c.TypesByStream(w) {
				if drafts[stream] == nil {
					drafts[stream] = &planBuilder{}
				}
				drafts[stream].add(t.Name, filter.Rule{Types: types, Where: where})
			}
		}
	}
	plans := map[string]*plan{}
	for stream, d := range drafts {
		plans[stream] = d.plan()
	}
	return plans, nil
}

// planBuilder collects the rules of a stream.
type planBuilder struct {
	triggers []string
	rules    []filter.Rule
	of       []int // index of the trigger of each rule
}

// add adds a rule of a trigger. The rules of one trigger are added one after the other.
func (d *planBuilder) add(trigger string, r filter.Rule) {
	if n := len(d.triggers); n == 0 || d.triggers[n-1] != trigger {
		d.triggers = append(d.triggers, trigger)
	}
	d.rules = append(d.rules, r)
	d.of = append(d.of, len(d.triggers)-1)
}

func (d *planBuilder) plan() *plan {
	index, of := filter.NewIndex(d.rules), d.of
	return &plan{triggers: d.triggers, match: func(v *broker.View, dst []int) []int {
		had := len(dst)
		if dst = index.Match(v, dst); len(dst) > had && deadletters.OfLetter(v) {
			return dst[:had] // a failing trigger on dead letters would otherwise make dead letters of dead letters for ever
		}
		for n := had; n < len(dst); n++ {
			dst[n] = of[dst[n]] // rules ascend, so their triggers ascend too
		}
		return dst[:had+len(slices.Compact(dst[had:]))]
	}}
}

// deserted returns the plan of a stream that no trigger reads any more.
func deserted() *plan {
	return &plan{match: func(_ *broker.View, dst []int) []int { return dst }}
}

// byName returns the config's triggers by name.
func byName(c *config.Config) map[string]*config.Trigger {
	all := make(map[string]*config.Trigger, len(c.Triggers))
	for n := range c.Triggers {
		all[c.Triggers[n].Name] = &c.Triggers[n]
	}
	return all
}

// triggerStarts is the part of a partition's state that is not about single items. It is
// stored on the parked log for the next owner.
type triggerStarts struct {
	// From is the offset at which each trigger of the stream begins.
	From map[string]int64 `json:"from"`
	// Commands is the offset up to which the partition has read the commands. Letters
	// is the number of dead letters that it has taken of each command with more to
	// take.
	Commands int64         `json:"commands"`
	Letters  map[int64]int `json:"letters,omitempty"`
	// Next is a source offset that the readers had reached.
	Next int64 `json:"next"`
}

// apply gives the partition new settings.
func (p *partition) apply(t *triggerSettings, now millis) {
	p.settings = t
	for _, l := range p.states {
		l.change(t, now)
	}
	p.reckon()
	p.release(now)
}

// reckon compares the triggers that read the stream with those that have begun.
func (p *partition) reckon() {
	p.wanted = nil
	news := p.begun.startsFor(p.settings.plan.triggers, max(p.next, p.latest))
	news.Next = p.base
	if !maps.Equal(news.From, p.begun.From) || p.begunAt == none {
		p.wanted = &news
	}
	p.reads = p.reads[:0]
	for _, name := range p.settings.plan.triggers {
		p.reads = append(p.reads, planned{p.triggerState(name), news.From[name]})
	}
}

// startsFor returns the state for the given triggers; new triggers begin at an offset.
func (b *triggerStarts) startsFor(triggers []string, at int64) triggerStarts {
	news := triggerStarts{From: make(map[string]int64, len(triggers))}
	for _, name := range triggers {
		from, known := b.From[name]
		if !known {
			from = at
		}
		news.From[name] = from
	}
	return news
}

// skewing reports whether our config may be older than another dispatcher's: a trigger
// has begun here that ours does not have.
func (p *partition) skewing(now millis) bool {
	if now >= p.skewed {
		return false
	}
	for name := range p.begun.From {
		if !slices.Contains(p.settings.plan.triggers, name) {
			return true
		}
	}
	return false
}

// mustHold reports whether batches must wait until triggers have begun or ended. Ended
// triggers count too: a trigger that comes back before its end is written down would
// miss the events that were read without it.
func (p *partition) mustHold(now millis) bool {
	return !p.opened || p.missing || p.skewing(now) || p.wanted != nil || p.writing != nil && p.writing.begins
}

// manyActs bounds the commands that a new owner has to read again.
const manyActs = 64

// longLog is the number of records after which begun is written again, because it alone
// would otherwise make rebuilds long.
const longLog = 4 << 10

func (p *partition) planBegun(w *partitionWrite, now millis) {
	switch {
	case p.skewing(now):
	case p.wanted != nil:
		w.begun, p.wanted, w.begins = p.wanted, nil, true
	case p.needsRewrite(now), w.replayed != nil:
		again := p.begun // same starts in a newer record
		again.From, again.Next = maps.Clone(p.begun.From), p.base
		w.begun = &again
	}
	if w.begun == nil {
		return
	}
	w.begun.Commands, w.begun.Letters = p.progress.written(w.replayed)
	if p.begunAt != none {
		p.needed.Remove(p.begunAt)
	}
}

// needsRewrite reports whether begun should be written again: its retention nears, or only begun
// keeps the mark from moving.
func (p *partition) needsRewrite(now millis) bool {
	if p.begunAt == none {
		return false
	}
	old := p.bounds.retention > 0 && p.begunOn.add(p.bounds.retention/4) <= now
	return old || p.progress.unsaved > manyActs || p.logEnd-p.begunAt > longLog && p.needed.Low(p.logEnd) <= p.begunAt
}

// begin updates the partition after a state has been written.
func (p *partition) begin(b *triggerStarts, at int64, now millis) {
	p.needed.Add(at)
	p.begun, p.begunAt, p.begunOn = *b, at, now
	p.progress.unsaved = 0
	p.stirred = true // the loader waits for this before it reads the events of a removed trigger
	p.reckon()
}
