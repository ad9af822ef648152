package chaos

import (
	"cmp"
	"fmt"
	"slices"
)

// judge checks the promises of triggers.
func (s *story) judge() faults {
	var f faults
	if s.judgePublished(&f); len(f) > 0 {
		return f
	}
	for _, r := range rules {
		s.judgeDelivered(&f, r)
		if r.ordered {
			s.judgeTurns(&f, r)
		}
		if r.replies {
			s.judgeReplies(&f, r)
		}
	}
	s.judgeStrays(&f)
	return f
}

// judgePublished checks that each event is on the stream once, because the other checks rely on it.
func (s *story) judgePublished(f *faults) {
	seen := map[string]bool{}
	for _, e := range s.in {
		if seen[e.id] {
			f.add("published twice: %s", e.id)
		}
		seen[e.id] = true
	}
}

// eventRecord is the record of an event and a rule, from the sink and the dead letters.
type eventRecord struct {
	first  int    // time at which the event's first attempt began; 0 without an attempt
	fine   int    // time of the first 2xx; 0 without a 2xx
	letter string // reason of the dead letter; empty without a dead letter
}

func (s *story) heard(r rule) map[string]eventRecord {
	all := map[string]eventRecord{}
	for _, a := range s.attempts {
		if a.rule != r.name {
			continue
		}
		h := all[a.id]
		if h.first == 0 || a.began < h.first {
			h.first = a.began
		}
		if a.fine() && (h.fine == 0 || a.ended < h.fine) {
			h.fine = a.ended
		}
		all[a.id] = h
	}
	for _, l := range s.letters {
		if l.rule == r.name {
			h := all[l.of]
			h.letter = cmp.Or(l.reason, "no reason")
			all[l.of] = h
		}
	}
	return all
}

// judgeDelivered checks that each event was delivered or, where its trigger may give up, became a
// dead letter. An event may have both, because the answer may have come after the dispatcher's
// timeout.
func (s *story) judgeDelivered(f *faults, r rule) {
	all := s.heard(r)
	for _, e := range s.in {
		h := all[e.id]
		switch {
		case !r.matches(e.id):
		case h.letter != "" && !r.yields:
			f.add("given up: %s got a letter of %s, which has attempts to spare: %s", e.id, r.name, h.letter)
		case h.letter != "" || h.fine > 0:
		case h.first > 0:
			f.add("never delivered: %s reached %s and was never answered well", e.id, r.name)
		default:
			f.add("lost: %s never reached %s", e.id, r.name)
		}
	}
}

// judgeTurns checks that a key's event starts only after its predecessor has ended. This holds for
// first deliveries; repeated deliveries may come at any time.
func (s *story) judgeTurns(f *faults, r rule) {
	all := s.heard(r)
	type turn struct {
		id  string
		end int
	}
	last := map[string]turn{} // last turn, by key
	for _, e := range s.in {
		if !r.matches(e.id) {
			continue
		}
		h, before := all[e.id], last[e.key]
		if h.first > 0 && h.first < before.end {
			f.add("disorder: %s set out for %s at %d, and %s before it, both of %s, ended at %d", e.id, r.name, h.first, before.id, e.key, before.end)
		}
		end := h.fine
		if h.letter != "" {
			end = h.first // the sink does not know when the dispatcher gave up, and later attempts are repeats
		}
		if end > before.end {
			last[e.key] = turn{e.id, end}
		}
	}
}

// judgeReplies checks that each event has one reply, in any number of copies, under the id that
// derives from the event. A key's replies must be in order, by the first occurrence of each.
func (s *story) judgeReplies(f *faults, r rule) {
	want, order := map[string]record{}, map[string]int{}
	for i, e := range s.in {
		if r.matches(e.id) {
			want[replyID(r.name, e.id)] = e
			order[e.id] = i
		}
	}
	seen, last := map[string]bool{}, map[string]string{}
	for _, p := range s.replies {
		if p.trigger != r.name {
			continue
		}
		e, ok := want[p.id]
		if !ok {
			f.add("a reply of nothing: %s at %d/%d, to %q", p.id, p.partition, p.offset, p.causeID)
			continue
		}
		judgeReply(f, p, e)
		if seen[p.id] {
			continue
		}
		seen[p.id] = true
		if before, ok := last[e.key]; ok && order[before] > order[e.id] {
			f.add("replies out of order: that to %s, at %d/%d, comes behind that to %s", e.id, p.partition, p.offset, before)
		}
		last[e.key] = e.id
	}
	for id, e := range want {
		if !seen[id] {
			f.add("no reply: %s of %s was delivered, and %s is nowhere", e.id, r.name, id)
		}
	}
}

func judgeReply(f *faults, p reply, e record) {
	if p.causeID != e.id || p.causeSrc != sourceHere || p.to != e.id || p.key != e.key || p.data != replyData(e.id) {
		f.add("altered reply: %s at %d/%d to %s is %+v", p.id, p.partition, p.offset, e.id, p)
	}
}

func replyData(id string) string { return "re: " + id }

// judgeStrays checks that each attempt, dead letter and reply belongs to a rule that matches the
// event.
func (s *story) judgeStrays(f *faults) {
	published := map[string]bool{}
	for _, e := range s.in {
		published[e.id] = true
	}
	stray := func(what, name, id string) {
		r, ok := ruleOf(name)
		if !ok || !published[id] || !r.matches(id) {
			f.add("astray: %s of %q for %q", what, id, name)
		}
	}
	for _, a := range s.attempts {
		stray("an attempt", a.rule, a.id)
	}
	for _, l := range s.letters {
		stray("a letter", l.rule, l.of)
	}
	for _, p := range s.replies {
		if r, ok := ruleOf(p.trigger); !ok || !r.replies {
			f.add("astray: a reply of %q to %q", p.trigger, p.causeID)
		}
	}
}

// judgeCalm checks that events that had ended before all dispatchers stopped are not delivered
// again. from is the sink's clock when the dispatchers started again. Events whose answer the sink
// delayed are exempt, because the dispatcher may not have got the answer.
func (s *story) judgeCalm(f *faults, old int, from int) {
	slept := map[string]bool{}
	for _, a := range s.attempts {
		if a.late {
			slept[a.rule+" "+a.id] = true
		}
	}
	var again []string
	for _, a := range s.attempts {
		if a.began > from && numberOf(a.id) < int64(old) && !slept[a.rule+" "+a.id] {
			again = append(again, fmt.Sprintf("%s for %s", a.id, a.rule))
		}
	}
	if len(again) > 0 {
		slices.Sort(again)
		f.add("again: %d events had ended before all was stopped in good order, and came once more: %v", len(again), again[:min(5, len(again))])
	}
}
