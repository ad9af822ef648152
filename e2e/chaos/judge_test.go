package chaos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// faults are the judge's findings, one line each.
type faults []string

func (f *faults) add(format string, words ...any) { *f = append(*f, fmt.Sprintf(format, words...)) }

// judge checks the rules that every round must keep.
func (r *round) judge() faults {
	var f faults
	r.judgeAcks(&f)
	r.judgeOrder(&f)
	r.judgeHandled(&f)
	r.judgeCopies(&f)
	return f
}

// parseNumber parses a number from a journal.
func parseNumber(word string) int64 {
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func (e entry) place() input { return input{int32(parseNumber(e.words[0])), parseNumber(e.words[1])} }

// judgeAcks checks that each acknowledged event is at the acknowledged position, that no event is
// on the stream twice, and that every event was sent.
func (r *round) judgeAcks(f *faults) {
	at := map[string][]input{}
	for _, e := range r.in {
		at[e.id] = append(at[e.id], input{e.partition, e.offset})
	}
	sent := map[string]bool{}
	for _, e := range r.journal {
		switch e.verb {
		case "send":
			sent[e.words[0]] = true
		case "ack":
			where := input{int32(parseNumber(e.words[1])), parseNumber(e.words[2])}
			switch stands := at[e.words[0]]; {
			case len(stands) == 0:
				f.add("lost: %s was acknowledged at %v and stands nowhere", e.words[0], where)
			case where.offset >= 0 && !slices.Contains(stands, where):
				f.add("misplaced: %s was acknowledged at %v and stands at %v", e.words[0], where, stands)
			}
		}
	}
	for _, e := range r.in {
		if stands := at[e.id]; len(stands) > 1 && stands[0] == (input{e.partition, e.offset}) {
			f.add("duplicate: %s stands at %v", e.id, stands)
		}
		if !sent[e.id] {
			f.add("invented: %s at %d/%d was never sent", e.id, e.partition, e.offset)
		}
	}
}

// judgeOrder checks that the events that one life of a publisher sent under one key are in the
// order of sending. A partition's records are in order of offset.
func (r *round) judgeOrder(f *faults) {
	last := map[string]record{}
	for _, e := range r.in {
		dot := strings.LastIndexByte(e.id, '.')
		lane := e.id[:dot] + " " + e.key
		before, ok := last[lane]
		if ok && parseNumber(before.id[dot+1:]) >= parseNumber(e.id[dot+1:]) || ok && before.partition != e.partition {
			f.add("disorder: %s at %d/%d comes behind %s at %d/%d, both of key %s", e.id, e.partition, e.offset, before.id, before.partition, before.offset, e.key)
		}
		last[lane] = e
	}
}

// judgeHandled checks that some reader has handled every event to its end, and that no offset was
// committed past an event that was not handled.
func (r *round) judgeHandled(f *faults) {
	done := map[input]bool{}
	for _, e := range r.journal {
		if e.verb == "done" {
			done[e.place()] = true
		}
	}
	ends := map[int32]int64{}
	for _, e := range r.in {
		ends[e.partition] = e.offset + 1
		at := input{e.partition, e.offset}
		switch committed := r.groups[groupRead][e.partition]; {
		case done[at]:
		case e.offset < committed:
			f.add("passed over: %s at %v never ended, and %d is committed", e.id, at, committed)
		default:
			f.add("unhandled: %s at %v never ended", e.id, at)
		}
	}
	for partition, end := range ends {
		if committed := r.groups[groupRead][partition]; committed > end {
			f.add("beyond: partition %d ends at %d, and %d is committed", partition, end, committed)
		}
	}
}

// judgeCopies checks that, among committed events, each input has its output once and in order.
func (r *round) judgeCopies(f *faults) {
	copies := map[input][]int64{}
	last := map[int32]int64{}
	for _, e := range r.out {
		if e.partition != e.ofInput.partition {
			f.add("astray: the copy of %v is on partition %d", e.ofInput, e.partition)
		}
		copies[e.ofInput] = append(copies[e.ofInput], e.offset)
		if before, ok := last[e.partition]; ok && before > e.ofInput.offset {
			f.add("copies out of order: %v comes behind that of %d, at %d", e.ofInput, before, e.offset)
		}
		last[e.partition] = e.ofInput.offset
	}
	for _, e := range r.in {
		at := input{e.partition, e.offset}
		if n := len(copies[at]); n != 1 {
			f.add("copied %d times: %s at %v, at offsets %v", n, e.id, at, copies[at])
		}
		delete(copies, at)
	}
	for at := range copies {
		f.add("a copy of nothing: %v", at)
	}
}
