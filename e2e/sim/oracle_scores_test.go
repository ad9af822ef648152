package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// scored checks that each message has one score or one dead letter for each of its records, and that the version was the
// champion then, or the canary of the event's user. The scores of a key follow its champions in their order.
func (o *oracle) scored() (all []string) {
	answers, answered := map[string]*record{}, map[string]int{} // by place, and number by message
	for i := range o.records["scored"] {
		if r := &o.records["scored"][i]; r.typ() == "tidemill.scored" {
			answers[r.id()+" "+r.head["ce_causationid"]] = r
			answered[r.head["ce_causationid"]]++
		}
	}
	proposed, champions, at := o.proposals(), map[string][]reign{}, map[string]int{} // at is the reign of the last answer to a key
	for model, of := range o.decisions() {
		champions[model] = reigns(of, proposed, o.w.p.clocksDiffer())
	}
	letters, records, missing, again := o.letters("intents"), map[string]int{}, o.unscored(), o.readAgain()
	known := map[string]bool{} // keys with an answer
	for i := range o.records["messages"] {
		r := &o.records["messages"][i]
		records[r.id()]++
		answer := answers["messages/"+r.spot()+" "+r.id()]
		if answer == nil {
			if letter := missing[r.spot()+" "+r.id()]; letter != nil && known[r.key()] {
				all = append(all, fmt.Sprintf("message %s of %s has a dead letter after an answer to its key: %s", r.id(), r.key(), letter.value))
			}
			continue
		}
		known[r.key()] = true
		if again.young[r.id()] || again.all[r.id()] && letters[r.id()] > 0 { // its score may be late
			continue
		}
		var d struct{ User string }
		_ = json.Unmarshal([]byte(r.value), &d) // a message without a user has none
		model := answer.head["ce_model"]
		version, _ := strconv.Atoi(answer.head["ce_modelversion"])
		if model != "intent/"+r.key() {
			all = append(all, fmt.Sprintf("message %s of %s was scored by model %s", r.id(), r.key(), model))
		}
		next := at[r.key()]
		for next < len(champions[model]) && !champions[model][next].allows(model, version, d.User, answer.at, o.w.p.judging.share) {
			next++
		}
		if next == len(champions[model]) {
			all = append(all, fmt.Sprintf("message %s of %s was scored by version %d of %s, which was neither its champion nor the user's canary then: %v", r.id(), r.key(), version, model, champions[model][at[r.key()]:]))
			continue
		}
		at[r.key()] = next
	}
	lost := o.mayBeLost("messages", "scored")
	for _, id := range slices.Sorted(maps.Keys(records)) {
		if n := answered[id] + letters[id]; n != records[id] && !lost[id] && !again.mayDiffer(id, records[id], answered[id], letters[id]) {
			all = append(all, fmt.Sprintf("message %s is %d times on its stream and has %d scores and %d dead letters", id, records[id], answered[id], letters[id]))
		}
	}
	return all
}

// unscored returns the dead letters of the scorer, by the place and the id of the message.
func (o *oracle) unscored() map[string]*record {
	all := map[string]*record{}
	for i := range o.records["dead-letters"] {
		r := &o.records["dead-letters"][i]
		var l letter
		if r.head["ce_scorer"] == "intents" && json.Unmarshal([]byte(r.value), &l) == nil {
			all[fmt.Sprint(l.Partition, "/", l.Offset, " ", l.OriginalID)] = r
		}
	}
	return all
}

// calmFor is the time after the last fault and the last promotion after which each scorer must know each champion.
const calmFor = 10 * time.Second

// probed publishes a message for each champion when all is drained, and checks that this champion answers it, or a later one. So
// it finds a scorer that has kept an older version.
func (o *oracle) probed() (all []string) {
	champions, proposed, calm := map[string][]reign{}, o.proposals(), o.quiet
	for model, of := range o.decisions() {
		if champions[model] = reigns(of, proposed, o.w.p.clocksDiffer()); len(champions[model]) > 0 {
			calm = later(calm, champions[model][len(champions[model])-1].begins)
		}
	}
	switch {
	case time.Since(calm) < calmFor:
		return []string{"the probes wait until all has been calm for a while"}
	case o.probes == nil:
		o.publishProbes(champions)
		return []string{"the probes are not answered yet"}
	}
	answers := map[string]*record{}
	for i := range o.records["scored"] {
		answers[o.records["scored"][i].head["ce_causationid"]] = &o.records["scored"][i]
	}
	for id, since := range o.probes {
		r := answers[id]
		if r == nil {
			all = append(all, fmt.Sprintf("probe %s has no answer, and there are champions: %v", id, champions))
			continue
		}
		model := r.head["ce_model"]
		version, _ := strconv.Atoi(r.head["ce_modelversion"])
		if !slices.ContainsFunc(champions[model][since:], func(c reign) bool { return c.allows(model, version, "", r.at, o.w.p.judging.share) }) {
			all = append(all, fmt.Sprintf("probe %s was answered by version %d of %s, and its champion was %v", id, version, model, champions[model][since:]))
		}
	}
	return all
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// publishProbes publishes a message for each model with a champion.
func (o *oracle) publishProbes(champions map[string][]reign) {
	o.probes = map[string]int{}
	clients, done := o.w.posts.clients()
	defer done()
	for _, model := range slices.Sorted(maps.Keys(champions)) {
		if n := len(champions[model]); n > 0 {
			e := &post{id: fmt.Sprint("probe-", len(o.probes)), typ: "message", key: strings.TrimPrefix(model, "intent/"), body: `{"x":[1,0]}`}
			o.probes[e.id] = n - 1
			o.w.posts.post(e, clients, n%len(clients))
		}
	}
}

// TestOracleOfScores plays answers to one key whose champions were the versions 1, 2 and 3. Version 3 was the canary of 2.
func TestOracleOfScores(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	fact := func(second int, typ, id, value string) record {
		return record{at: at(second), value: value, head: map[string]string{"ce_type": "tidemill.model." + typ, "ce_id": id, "ce_model": "intent/k"}}
	}
	facts := []record{
		fact(1, "promotion-proposed", "a", `{"version":1}`), fact(2, "promoted", "A", `{"proposal":"a","version":1,"champion":1,"turn":1}`),
		fact(3, "promotion-proposed", "b", `{"version":2}`), fact(4, "promoted", "B", `{"proposal":"b","version":2,"champion":2,"before":1,"turn":2}`),
		fact(5, "promotion-proposed", "c", `{"version":3}`), fact(6, "canary", "C", `{"proposal":"c","version":3,"champion":2,"turn":2}`),
		fact(7, "promotion-proposed", "d", `{"version":3}`), fact(8, "promoted", "D", `{"proposal":"d","version":3,"champion":3,"before":2,"turn":3}`),
	}
	share := hashed("canary", "intent/k@3", "ann")
	for name, c := range map[string]struct {
		share    float64
		seconds  []int // time of each answer
		versions []int
		wrong    int
	}{
		"champions in their order":              {share, []int{2, 4, 8}, []int{1, 2, 3}, 0},
		"a dead letter before the champions":    {share, []int{1, 2}, []int{0, 1}, 0},
		"a dead letter after an answer":         {share, []int{2, 4}, []int{1, 0}, 1},
		"an older version after a newer one":    {share, []int{2, 4, 9}, []int{1, 2, 1}, 1},
		"a version before it was proposed":      {share, []int{2}, []int{2}, 1},
		"the canary of another user":            {share, []int{4, 6}, []int{2, 3}, 1},
		"the user's canary beside the champion": {share + 0.01, []int{4, 6, 6, 8}, []int{2, 3, 2, 3}, 0},
		"the champion before the last one":      {share + 0.01, []int{4, 6, 6}, []int{2, 3, 1}, 1},
		"the canary after its promotion":        {share, []int{8}, []int{3}, 0},
	} {
		o := &oracle{w: &world{p: &plan{judging: judging{share: c.share}}}, records: map[string][]record{"facts": facts}}
		for i, version := range c.versions {
			id := strconv.Itoa(i)
			o.records["messages"] = append(o.records["messages"], record{offset: int64(i), value: `{"user":"ann"}`, head: map[string]string{"ce_id": id, "ce_subject": "k"}})
			if version == 0 {
				o.records["dead-letters"] = append(o.records["dead-letters"], record{value: fmt.Sprintf(`{"offset":%d,"originalId":%q}`, i, id),
					head: map[string]string{"ce_type": "tidemill.event.dead-lettered", "ce_causationid": id, "ce_scorer": "intents"}})
				continue
			}
			o.records["scored"] = append(o.records["scored"], record{at: at(c.seconds[i]), head: map[string]string{"ce_type": "tidemill.scored", "ce_id": "messages/0/" + id,
				"ce_causationid": id, "ce_model": "intent/k", "ce_modelversion": strconv.Itoa(version)}})
		}
		if wrong := o.scored(); len(wrong) != c.wrong {
			t.Errorf("%s: %q, want %d complaints", name, wrong, c.wrong)
		}
	}
}
