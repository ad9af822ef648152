package chaos

import (
	"fmt"
	"strings"
)

// judge checks the promises of scorers.
func (s *scoredStory) judge(of *models) faults {
	var f faults
	if s.judgePublished(&f); len(f) > 0 {
		return f
	}
	s.judgeOutputs(&f)
	s.judgeOnce(&f)
	s.judgeLetters(&f, of)
	s.judgeOrder(&f)
	s.judgeVersions(&f, of)
	s.judgeSwaps(&f)
	return f
}

// judgePublished checks that each event is on the stream once, because the other checks rely on it.
func (s *scoredStory) judgePublished(f *faults) {
	seen := map[string]bool{}
	for _, e := range s.in {
		if seen[e.id] {
			f.add("published twice: %s", e.id)
		}
		seen[e.id] = true
	}
}

// judgeOutputs checks that each output has an input, is on the right partition, and has its
// version's answer.
func (s *scoredStory) judgeOutputs(f *faults) {
	came := map[string]record{}
	for _, e := range s.in {
		came[e.id] = e
	}
	for _, o := range s.out {
		e, known := came[o.cause]
		switch {
		case o.unexpected != "":
			f.add("strange: %s at %d/%d: %s", o.id, o.partition, o.offset, o.unexpected)
		case !known:
			f.add("of nothing: %s at %d/%d, of %q", o.id, o.partition, o.offset, o.cause)
		case o.key != e.key || o.partition != e.partition:
			f.add("astray: %s of %s at %d/%d has the key %q; it came as %q on partition %d", o.id, o.cause, o.partition, o.offset, o.key, e.key, e.partition)
		case o.model == "":
			s.judgePassed(f, o)
		case o.in != input{e.partition, e.offset} || o.model != modelOf(e.key):
			f.add("mistaken: %s by %s@%d tells of %s, which lies at %d/%d and has the key %s", o.id, o.model, o.version, o.cause, e.partition, e.offset, e.key)
		case o.label != labelOf(o.model, o.version) || o.scores != modelLabels:
			f.add("answered by another: %s has the label %s and %d scores, and %s@%d says %s", o.id, o.label, o.scores, o.model, o.version, labelOf(o.model, o.version))
		}
	}
}

// judgePassed checks that only events without a model are passed on unchanged.
func (s *scoredStory) judgePassed(f *faults, o output) {
	late, never := modelArrival(o.key)
	if !s.pass || !late && !never {
		f.add("passed on: %s of %s at %d/%d, which has a model", o.id, o.key, o.partition, o.offset)
	}
}

// judgeOnce checks that every event has exactly one end. The embedded Kafka ends a transaction
// partition by partition, and its offsets last. If it is killed during that, a dead letter may be
// visible although its event is read again. The second dead letter has the same id. If the key's
// model has come meanwhile, the event is scored instead. Scorers read their outputs back, so each
// scored output is on the stream once even then.
func (s *scoredStory) judgeOnce(f *faults) {
	ends := map[string][]string{}
	for _, o := range s.out {
		ends[o.cause] = append(ends[o.cause], fmt.Sprintf("%s at %d/%d", o.id, o.partition, o.offset))
	}
	known := map[string]bool{}
	for _, l := range s.letters {
		if s.torn && (known[l.id] || len(ends[l.of]) > 0) {
			continue
		}
		known[l.id] = true
		ends[l.of] = append(ends[l.of], "a letter: "+l.reason)
	}
	for _, e := range s.in {
		switch of := ends[e.id]; {
		case kindOf(int(numberOf(e.id))) == otherType:
			if len(of) > 0 {
				f.add("not asked for: %s has come to %v", e.id, of)
			}
		case len(of) == 0:
			f.add("lost: %s of %q, at %d/%d", e.id, e.key, e.partition, e.offset)
		case len(of) > 1:
			f.add("twice: %s of %q, at %d/%d, has come to %v", e.id, e.key, e.partition, e.offset, of)
		}
	}
}

// judgeLetters checks that only events that cannot be scored became dead letters.
func (s *scoredStory) judgeLetters(f *faults, of *models) {
	at := map[string]record{}
	for _, e := range s.in {
		at[e.id] = e
	}
	first := s.firsts()
	for _, l := range s.letters {
		e := at[l.of]
		late, never := modelArrival(e.key)
		switch kind := kindOf(int(numberOf(l.of))); {
		case l.rule != "scorer/"+scorerName:
			f.add("a letter of another: %s of %s", l.of, l.rule)
		case kind == unmapped, kind == keyless:
		case s.pass || !late && !never || !strings.Contains(l.reason, "no champion"):
			f.add("given up: %s of %q: %s", l.of, e.key, l.reason)
		case late:
			if begun, ok := first[e.key]; ok && begun < e.offset {
				f.add("gone back: %s of %s, at offset %d, had no champion, and offset %d was scored", l.of, e.key, e.offset, begun)
			}
		}
	}
	for _, o := range s.out {
		if begun, ok := first[o.key]; ok && o.model == "" && begun < at[o.cause].offset {
			f.add("gone back: %s of %s was passed on, and offset %d was scored", o.cause, o.key, begun)
		}
	}
}

// firsts returns the offset of each key's first scored event.
func (s *scoredStory) firsts() map[string]int64 {
	first := map[string]int64{}
	for _, o := range s.out {
		if before, ok := first[o.key]; o.model != "" && (!ok || o.in.offset < before) {
			first[o.key] = o.in.offset
		}
	}
	return first
}

// judgeOrder checks that a key's outputs are in the order of its events.
func (s *scoredStory) judgeOrder(f *faults) {
	at := map[string]int64{}
	for _, e := range s.in {
		at[e.id] = e.offset
	}
	last := map[string]output{}
	for _, o := range s.out {
		if before, ok := last[o.key]; ok && at[before.cause] > at[o.cause] {
			f.add("disorder: %s of %s, at %d/%d, comes behind %s", o.cause, o.key, o.partition, o.offset, before.cause)
		}
		last[o.key] = o
	}
}

// judgeVersions checks that the versions of a key's outputs were champions, in that order.
func (s *scoredStory) judgeVersions(f *faults, of *models) {
	reign := map[string]int{} // index of the reign that answers, by key
	for _, o := range s.out {
		if o.model == "" {
			continue
		}
		m := of.all[o.key]
		if m == nil {
			f.add("no champion: %s was scored by %s@%d, which nobody made", o.cause, o.model, o.version)
			continue
		}
		i := reign[o.key]
		for i < len(m.reigns) && m.reigns[i] != o.version {
			i++
		}
		switch {
		case m.unfit[o.version]:
			f.add("unfit: %s was scored by %s@%d, which cannot be loaded", o.cause, o.model, o.version)
		case i == len(m.reigns):
			f.add("gone back: %s was scored by %s@%d, behind the %d. of its champions %v", o.cause, o.model, o.version, reign[o.key]+1, m.reigns)
		default:
			reign[o.key] = i
		}
	}
}

// judgeSwaps checks the reported offset of each version's first event on a partition. If a
// transaction was torn (see judgeOnce), the report may be lost while the outputs are there. But a
// report is never wrong.
func (s *scoredStory) judgeSwaps(f *faults) {
	said, is := map[swapped]int64{}, map[swapped]int64{}
	least := func(of map[swapped]int64, w swapped) {
		offset := w.offset
		w.offset = 0
		if before, ok := of[w]; !ok || offset < before {
			of[w] = offset
		}
	}
	for _, w := range s.swaps {
		least(said, w)
	}
	for _, o := range s.out {
		if o.model != "" {
			least(is, swapped{o.model, o.version, o.in.partition, o.in.offset})
		}
	}
	for w, at := range is {
		if told, ok := said[w]; (!ok || told != at) && (!s.torn || ok && told < at) {
			f.add("the swap to %s@%d on partition %d is said to be at %d (%v), and is at %d", w.model, w.version, w.partition, told, ok, at)
		}
	}
	for w, at := range said {
		if _, ok := is[w]; !ok {
			f.add("a swap to %s@%d on partition %d is said to be at %d, and it has scored nothing there", w.model, w.version, w.partition, at)
		}
	}
}

// outdated names a key whose last output is not by its champion.
func (s *scoredStory) outdated(of *models) string {
	last := map[string]output{}
	for _, o := range s.out {
		if o.model != "" {
			last[o.key] = o
		}
	}
	for _, key := range of.keys() {
		if m := of.all[key]; last[key].version != m.Champion {
			return fmt.Sprintf("%s is scored by version %d, and its champion is %d", key, last[key].version, m.Champion)
		}
	}
	return ""
}
