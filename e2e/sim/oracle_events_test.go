package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// home returns the stream of a type of events.
func home(typ string) string {
	switch typ {
	case "message":
		return "messages"
	case "side":
		return "side"
	}
	return "events"
}

// stored checks that each acknowledged event is on its stream.
func (o *oracle) stored() (all []string) {
	on := map[string]bool{}
	for _, stream := range []string{"events", "messages", "side"} {
		for i := range o.records[stream] {
			on[stream+o.records[stream][i].id()] = true
		}
	}
	lost := o.mayBeLost("events", "messages")
	for _, p := range o.w.posts.all {
		if p.acked && !on[home(p.typ)+p.id] && !lost[p.id] {
			all = append(all, fmt.Sprintf("%s %s of %s was acknowledged and is not on its stream", p.typ, p.id, p.key))
		}
	}
	return all
}

// letters returns the number of dead letters of events, by the id of the event, for a trigger or a
// scorer.
func (o *oracle) letters(of string) map[string]int {
	all := map[string]int{}
	for i := range o.records["dead-letters"] {
		r := &o.records["dead-letters"][i]
		if r.typ() == "tidemill.event.dead-lettered" && (r.head["ce_trigger"] == of || r.head["ce_scorer"] == of) {
			all[r.head["ce_causationid"]]++
		}
	}
	return all
}

// delivered checks that each stored event reached the trigger's subscriber, or became a dead letter,
// and that no subscriber got an event that is on no stream.
func (o *oracle) delivered() (all []string) {
	for path, typ := range map[string]string{"/tell": "order-paid", "/tick": "schedule-tick", "/fresh": "new-data"} {
		took, stored := map[string]bool{}, map[string]bool{} // an event may be stored twice
		for _, r := range o.w.sub.took {
			if r.path == path {
				took[r.source+" "+r.id] = true
			}
		}
		letters := o.letters(strings.TrimPrefix(path, "/"))
		for i := range o.records["events"] {
			r := &o.records["events"][i]
			name := r.head["ce_source"] + " " + r.id()
			if r.typ() == typ && !took[name] && letters[r.id()] == 0 {
				all = append(all, fmt.Sprintf("%s %s of %s at %s was not delivered to %s and has no dead letter", typ, r.id(), r.key(), r.spot(), path))
			}
			stored[name] = stored[name] || r.typ() == typ
		}
		for name := range took {
			if !stored[name] && o.w.again["events"].IsZero() {
				all = append(all, fmt.Sprintf("%s got %s, which is on no stream", path, name))
			}
		}
	}
	return all
}

// letter is the data of a dead letter.
type letter struct {
	Stream, Group, Reason, Trigger, Scorer string
	Partition                              int32
	Offset                                 int64
	OriginalID, OriginalType               string
	Tried                                  int
	Attempts                               []struct {
		At     time.Time
		Status int
		Error  string
	}
}

// buried checks that each dead letter has a reason that fits this world.
func (o *oracle) buried() (all []string) {
	there := map[string]*record{}
	for _, stream := range []string{"events", "messages", "side"} {
		for i := range o.records[stream] {
			there[stream+o.records[stream][i].spot()] = &o.records[stream][i]
		}
	}
	for i := range o.records["dead-letters"] {
		r := &o.records["dead-letters"][i]
		if r.typ() != "tidemill.event.dead-lettered" {
			continue
		}
		var l letter
		err := json.Unmarshal([]byte(r.value), &l)
		wrong := ""
		switch of := there[fmt.Sprint(l.Stream, l.Partition, "/", l.Offset)]; {
		case err != nil:
			wrong = err.Error()
		case l.Trigger == "" && l.OriginalID == "": // it has no event
			wrong = o.noGap(&l)
		case o.w.again[l.Stream].IsZero() && (of == nil || of.id() != l.OriginalID || of.typ() != l.OriginalType):
			wrong = "its event is not at its place"
		case l.Trigger != "":
			wrong = o.notTried(&l)
		case l.Scorer == "intents" && l.Reason == fmt.Sprintf("model intent/%s has no champion", r.key()):
		case l.Group == "outcomes.intents" && (strings.HasPrefix(l.Reason, "no answer of scorer intents has an input with the id ") || strings.HasPrefix(l.Reason, "too late: ")):
		default:
			wrong = "its reason is none of this world"
		}
		if wrong != "" {
			all = append(all, fmt.Sprintf("%s: dead letter %s: %s", wrong, r.id(), r.value))
		}
	}
	return all
}

// noGap returns why a dead letter without an event does not fit. Only two faults cause such gaps: recreate deletes a stream with
// the offsets of its groups, and in weeks Kafka forgets groups. The recorded mark of a parked log may then be below the first
// record that is left.
func (o *oracle) noGap(l *letter) string {
	again, forgot := strings.Contains(l.Reason, "the stream was deleted and created again"), strings.Contains(l.Reason, "was forgotten by Kafka")
	gone := strings.HasSuffix(l.Stream, ".parked") && strings.HasPrefix(l.Reason, "the parked events are gone")
	f, slept := o.w.p.weeks()
	if was := !o.w.again[l.Stream].IsZero(); was && (again || forgot) || slept && (forgot || gone && f.other == "all") {
		return ""
	}
	return "no fault of this world causes such a gap"
}

// triggers are the types of events and the limits of attempts of the triggers. Without a limit in the config it is 10.
func (p *plan) triggers() map[string]struct {
	typ      string
	attempts int
} {
	return map[string]struct {
		typ      string
		attempts int
	}{"tell": {"order-paid", p.attempts}, "side": {"side", p.attempts}, "guest": {"side", p.attempts}, "tick": {"schedule-tick", 10}, "fresh": {"new-data", 10}}
}

// notTried returns why the attempts of a dead letter do not fit: a trigger tries as often as its limit says, and each attempt has
// failed by a fault of this world. No other reason is possible: no event is too old, and only the trigger guest leaves the config.
func (o *oracle) notTried(l *letter) string {
	of := o.w.p.triggers()[l.Trigger]
	switch {
	case of.typ != l.OriginalType:
		return "its trigger does not want it"
	case l.Trigger == "guest" && strings.HasPrefix(l.Reason, "trigger guest is no longer in the config"):
		return ""
	case l.Tried != of.attempts || len(l.Attempts) != of.attempts:
		return fmt.Sprintf("%d attempts were made, and the limit is %d", l.Tried, of.attempts)
	case !strings.HasPrefix(l.Reason, fmt.Sprintf("the subscriber did not take the event in %d attempts: ", of.attempts)):
		return "its reason is not that its attempts have failed"
	}
	for _, a := range l.Attempts {
		sick := slices.Contains([]int{500, 503, 504}, a.Status) && o.w.p.sick > 0
		unreached := a.Status == 0
		isLate := a.At.Add(-o.w.p.clocksDiffer()).After(o.quiet) // the subscriber is well, and only some messages are still lost or late
		if a.Error == "" || !sick && !unreached || isLate && (sick || o.w.p.cutEvery == 0 && o.w.p.lateEvery == 0) {
			return "no fault of this world makes its attempt fail that began at " + a.At.String()
		}
	}
	return ""
}

// inOrder checks that the first deliveries of a key's events have the order of the stream. An event
// with a dead letter has none: a request of one of its attempts may arrive at any time.
func (o *oracle) inOrder() (all []string) {
	if !o.w.p.ordered {
		return nil
	}
	first := map[string]*record{}
	for i := range o.records["events"] {
		if r := &o.records["events"][i]; r.ours() && first[r.id()] == nil {
			first[r.id()] = r
		}
	}
	last, seen, letters, lost := map[string]*record{}, map[string]bool{}, o.letters("tell"), o.mayBeLost("events")
	for _, r := range o.w.sub.took {
		is := first[r.id]
		if r.path != "/tell" || seen[r.id] || is == nil || letters[r.id] > 0 || lost[r.id] {
			continue
		}
		seen[r.id] = true
		if before := last[r.key]; before != nil && before.offset > is.offset {
			all = append(all, fmt.Sprintf("order-paid %s of %s at %s was first delivered after %s at %s", r.id, r.key, is.spot(), before.id(), before.spot()))
		}
		last[r.key] = is
	}
	return all
}

// labelled checks that each answer has one outcome, whose last revision has the truth of the last label that was in time,
// and that each label without such an answer has a dead letter.
func (o *oracle) labelled() (all []string) {
	if o.w.p.observers == 0 {
		return nil
	}
	outcomes, revisions, truths := map[string]int{}, map[string]int{}, map[string]string{}
	for i := range o.records["outcomes"] {
		r := &o.records["outcomes"][i]
		var d struct {
			Place, Truth string
			Revision     int
		}
		if err := json.Unmarshal([]byte(r.value), &d); err != nil {
			all = append(all, fmt.Sprintf("read outcome %s: %v", r.id(), err))
		}
		outcomes[r.id()]++
		if revisions[d.Place]++; d.Revision != revisions[d.Place] {
			all = append(all, fmt.Sprintf("outcome %s has revision %d and comes %d.", r.id(), d.Revision, revisions[d.Place]))
		}
		truths[d.Place] = d.Truth
	}
	// A stream without offsets is read from one wait ago. Kafka may be away for longer when an observer begins.
	since := o.w.history.last("outcomes: a stream is read for the first time").Add(-labelWait)
	labels, answered := map[string][]*record{}, map[string]bool{} // by the id of the message
	for i := range o.records["events"] {
		r := &o.records["events"][i]
		var d struct{ Of string }
		if r.typ() == "verdict" && json.Unmarshal([]byte(r.value), &d) == nil {
			labels[d.Of] = append(labels[d.Of], r)
		}
	}
	for i := range o.records["scored"] {
		r := &o.records["scored"][i]
		if r.typ() != "tidemill.scored" {
			continue
		}
		want := "none"
		for _, l := range labels[r.head["ce_causationid"]] {
			if l.at.Sub(r.at).Abs() <= labelWait {
				var d struct{ Truth string }
				_ = json.Unmarshal([]byte(l.value), &d) // a label without truth would be a wrong truth
				want, answered[l.spot()] = d.Truth, true
			}
		}
		if r.at.Before(since) {
			continue
		}
		if outcomes[r.id()] != 1 || truths[r.id()] != want {
			all = append(all, fmt.Sprintf("the answer to %s at %s has %d outcomes and the truth %q, want 1 and %q", r.head["ce_causationid"], r.id(), outcomes[r.id()], truths[r.id()], want))
		}
	}
	letters := map[string]int{}
	for i := range o.records["dead-letters"] {
		r := &o.records["dead-letters"][i]
		var d struct {
			Group             string
			Partition, Offset int64
		}
		if json.Unmarshal([]byte(r.value), &d) == nil && d.Group == "outcomes.intents" {
			letters[fmt.Sprint(d.Partition, "/", d.Offset)]++
		}
	}
	for _, of := range labels {
		for _, l := range of {
			if n := letters[l.spot()]; (n == 0) != answered[l.spot()] && !l.at.Before(since) {
				all = append(all, fmt.Sprintf("label %s at %s has %d dead letters; an answer was in time: %t", l.id(), l.spot(), n, answered[l.spot()]))
			}
		}
	}
	return all
}

// ticked checks that no scheduled time has two ticks.
func (o *oracle) ticked() (all []string) {
	of := map[string]string{}
	for i := range o.records["events"] {
		r := &o.records["events"][i]
		if r.typ() != "schedule-tick" {
			continue
		}
		at := r.head["ce_time"]
		if before, twice := of[at]; twice {
			all = append(all, fmt.Sprintf("the tick of %s is twice on the stream: %s and %s", at, before, r.id()))
		}
		of[at] = r.id()
	}
	return all
}

// TestOracleOfLetters judges dead letters of an event that a trigger with two attempts wants.
func TestOracleOfLetters(t *testing.T) {
	t.Parallel()
	const of, tried = `{"stream":"events","offset":1,"originalId":"e","originalType":"order-paid","trigger":"tell",`, `"reason":"the subscriber did not take the event in 2 attempts: answered 503","tried":2,"attempts":`
	for value, wrong := range map[string]int{
		of + tried + `[{"at":"2000-01-01T00:00:01Z","status":503,"error":"answered 503"},{"at":"2000-01-01T00:00:02Z","error":"no answer"}]}`: 0,
		of + tried + `[{"at":"2000-01-01T00:00:01Z","status":503,"error":"answered 503"},{"at":"2000-01-01T00:00:12Z","error":"no answer"}]}`: 1, // after the faults
		of + tried + `[{"at":"2000-01-01T00:00:01Z","status":503,"error":"answered 503"},{"at":"2000-01-01T00:00:02Z","status":204}]}`:        1,
		of + tried + `[{"at":"2000-01-01T00:00:01Z","status":503,"error":"answered 503"}]}`:                                                   1,
		of + `"reason":"the subscriber did not take the event in 2 attempts: "}`:                                                              1,
		of + `"reason":"the event has waited longer than half of its stream's retention"}`:                                                    1,
		of + `"tried":2}`: 1,
		strings.Replace(of, "order-paid", "schedule-tick", 1) + tried + `[]}`:                                                     1,
		`{"stream":"events","group":"triggers.events","reason":"the stream was deleted and created again; its events are lost"}`:  1,
		`{"stream":"messages","group":"scorer.intents","reason":"the stream was deleted and created again; its events are lost"}`: 0,
		`{"stream":"events","group":"triggers.events","reason":"the group's offset was forgotten by Kafka"}`:                      1,
		`{"stream":"messages","group":"triggers.events","reason":"the group's offset was forgotten by Kafka"}`:                    0,
		`{"stream":"scored","group":"x"}`: 1,
		`{"stream":"messages","originalId":"m","scorer":"intents","reason":"model intent/k has no champion"}`:                                                                      0,
		`{"stream":"messages","originalId":"m","scorer":"intents","reason":"its model cannot be loaded"}`:                                                                          1,
		`{"stream":"events","offset":1,"originalId":"e","originalType":"order-paid","group":"outcomes.intents","reason":"no answer of scorer intents has an input with the id e"}`: 0,
		`{"stream":"events","offset":1,"originalId":"e","originalType":"order-paid","group":"outcomes.intents"}`:                                                                   1,
	} {
		quiet := time.Date(2000, 1, 1, 0, 0, 10, 0, time.UTC)
		o := &oracle{quiet: quiet, w: &world{p: &plan{attempts: 2, sick: 5}, again: map[string]time.Time{"messages": quiet}}, records: map[string][]record{
			"events":       {{offset: 1, head: map[string]string{"ce_id": "e", "ce_type": "order-paid"}}},
			"dead-letters": {{value: value, head: map[string]string{"ce_type": "tidemill.event.dead-lettered", "ce_subject": "k"}}}}}
		if all := o.buried(); len(all) != wrong {
			t.Errorf("%s: %q, want %d complaints", value, all, wrong)
		}
	}
}
