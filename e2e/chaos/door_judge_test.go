package chaos

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// judgeDoor checks the promises of a 202 in a round of the gateway.
func (r *round) judgeDoor() faults {
	var f faults
	at, posts := map[string][]string{}, map[string]int{}
	for _, e := range r.in {
		at[e.id] = append(at[e.id], fmt.Sprintf("%s/%d/%d", streamIn, e.partition, e.offset))
		judgeContent(&f, e)
	}
	for _, e := range r.journal {
		switch e.verb {
		case "post":
			posts[e.words[0]]++
		case "ack":
			judgeReceipt(&f, e, at[e.words[0]], posts[e.words[0]])
		case "answer":
			r.judgeAnswer(&f, e)
		case "broken":
			r.judgeSilence(&f, e)
		case "senseless":
			f.add("%s.%d could make no sense of an answer: %v", e.name, e.life, e.words)
		}
	}
	for id, places := range at {
		switch {
		case posts[id] == 0:
			f.add("invented: %s at %v was never posted", id, places)
		case posts[id] == 1 && len(places) > 1:
			f.add("duplicate: %s was posted once and stands at %v", id, places)
		case len(places) > 1 && r.plan.profile == doorRestart:
			f.add("duplicate: %s stands at %v, so a gateway that ended in good order stored it and did not say so", id, places)
		}
	}
	r.judgeLanes(&f)
	return f
}

// judgeReceipt checks that an event answered with 202 is on the stream at the answer's position,
// and that the answer "repeat" is given only for an event that was posted before.
func judgeReceipt(f *faults, e entry, places []string, posts int) {
	id, at, repeated := e.words[0], strings.TrimSuffix(e.words[1], "|"), e.words[2] == "true"
	switch {
	case len(places) == 0:
		f.add("lost: %s was acknowledged at %q (repeated: %t) and stands nowhere", id, at, repeated)
	case repeated && posts < 2:
		f.add("mistaken: %s was posted once and taken for a repeat", id)
	case !repeated && !strings.HasSuffix(at, "/-1") && !slices.Contains(places, at):
		f.add("misplaced: %s was acknowledged at %q and stands at %v", id, at, places)
	}
}

// judgeAnswer checks that no request is refused without a reason.
func (r *round) judgeAnswer(f *faults, e entry) {
	status := int(parseNumber(e.words[0]))
	if status == http.StatusAccepted || status == http.StatusServiceUnavailable && r.plan.profile == doorStorm {
		return
	}
	f.add("%s.%d was answered %v in a round of %s", e.name, e.life, e.words, r.plan.profile)
}

// judgeContent checks that an event is stored as it was posted.
func judgeContent(f *faults, e record) {
	var who string
	var life, lane, n int
	if _, err := fmt.Sscanf(strings.ReplaceAll(e.id, ".", " "), "%s %d %d %d", &who, &life, &lane, &n); err != nil {
		f.add("altered: the id %q was never given", e.id)
		return
	}
	if key := fmt.Sprintf("%s-%d", who, lane); e.key != key || strings.Trim(e.data, `"`) != dataOf(e.id) {
		f.add("altered: %s at %d/%d has the key %q and the data %.80q", e.id, e.partition, e.offset, e.key, e.data)
	}
}

// judgeSilence checks that a running gateway answers every request.
func (r *round) judgeSilence(f *faults, e entry) {
	if r.plan.profile == doorRedis {
		f.add("%s.%d was not answered in a round of %s: %v", e.name, e.life, r.plan.profile, e.words)
	}
}

// judgeLanes checks that a lane's events are in order, by the first occurrence of each.
func (r *round) judgeLanes(f *faults) {
	seen, last := map[string]bool{}, map[string]record{}
	for _, e := range r.in {
		if seen[e.id] {
			continue
		}
		seen[e.id] = true
		dot := strings.LastIndexByte(e.id, '.')
		lane := e.id[:dot]
		before, ok := last[lane]
		if ok && (parseNumber(before.id[dot+1:]) > parseNumber(e.id[dot+1:]) || before.partition != e.partition) {
			f.add("disorder: %s at %d/%d comes behind %s at %d/%d", e.id, e.partition, e.offset, before.id, before.partition, before.offset)
		}
		last[lane] = e
	}
}
