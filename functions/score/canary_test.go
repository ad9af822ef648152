package score

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
)

// ofUsers returns events of two bots, each with a user.
func ofUsers(from, n int) []broker.View {
	all := make([]broker.View, n)
	for i := range all {
		all[i] = message(fmt.Sprint("bot-", (from+i)%2), from+i)
		all[i].Data = fmt.Appendf(nil, `{"user":"u%d","x":[%d,1,1,0.5]}`, (from+i)%37, i%7)
	}
	return all
}

// canary makes version 2 of a model its canary.
func (w *world) canary(model string, c tidemill.Canary) {
	w.Helper()
	w.register(model, 2)
	w.fact(tidemill.TypeModelPromotionProposed, model, "run-"+model+"2", tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 2, Run: "run-" + model + "2",
		Basis: 1, Turn: 1, Judgement: &tidemill.Judgement{Passed: true}, Canary: &c})
}

// checkOnce checks that each event has one output, in the order of its key, and returns the version of each output by
// the id of its event.
func (w *world) checkOnce(n int) map[string]string {
	w.Helper()
	versions, last := map[string]string{}, map[string]int64{}
	for _, out := range w.waitEvents(streamOut, n) {
		id, _ := out.Attribute(tidemill.AttrCausationID)
		version, _ := out.Attribute(tidemill.AttrModelVersion)
		if versions[id] != "" {
			w.Errorf("event %s has two outputs", id)
		}
		versions[id] = version
		if model, _ := out.Attribute(tidemill.AttrModel); model != "m/"+out.Subject {
			w.Errorf("event %s was answered by model %s", id, model)
		}
		at := offsetOf(out.ID)
		if before, some := last[out.Subject]; some && at <= before {
			w.Errorf("key %s: offset %d comes after %d", out.Subject, at, before)
		}
		last[out.Subject] = at
	}
	if len(versions) != n {
		w.Errorf("%d of %d events have outputs", len(versions), n)
	}
	return versions
}

// checkShare checks that from an event on, version 2 has answered the events of its users, and version 1 all others. It
// returns how many each has answered.
func (w *world) checkShare(from, n int) map[string]int {
	w.Helper()
	counts, versions := map[string]int{}, w.checkOnce(n)
	for i, in := range ofUsers(from, n-from) {
		want := "1"
		if in.Subject == "bot-0" && tidemill.CanaryTakes("m/bot-0", 2, []string{fmt.Sprint("u", (from+i)%37)}, 0.3) {
			want = "2"
		}
		counts[want]++
		if got := versions[in.ID]; got != want {
			w.Errorf("event %s was answered by version %s, want %s", in.ID, got, want)
		}
	}
	return counts
}

// A canary answers the events of its users, and the champion all others, in the order of each key. After its promotion it
// answers all of them. The other model of the stream has no canary.
func TestACanaryAnswersItsShare(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	w.canary("m/bot-0", tidemill.Canary{Share: 0.3, By: "data.user"})
	p := w.open(scorer())
	n := 0
	send := func(many int) {
		w.publish(ofUsers(n, many)...)
		n += many
	}
	w.poll("the canary is loaded", func() bool {
		send(20)
		return countByVersion(w.waitEvents(streamOut, n), "m/bot-0")["2"] > 0
	})
	from := n
	send(400)
	counts := w.checkShare(from, n)
	if counts["2"] < 20 {
		t.Errorf("the canary answers %d of 200 events", counts["2"])
	}
	if at := p.s.Standing(); len(at.Swaps) > 2 {
		t.Errorf("answers of a canary are swaps: %+v", at.Swaps)
	}

	for range 3 { // owners change while events come
		send(100)
		p.close()
		p = w.open(scorer())
		send(100)
	}
	w.checkShare(from, n)

	w.fact(tidemill.TypeModelPromotionProposed, "m/bot-0", "run-m/bot-02", tidemill.PromotionProposed{Action: tidemill.ActionSettle, Version: 2, Run: "run-m/bot-02",
		Basis: 1, Turn: 1, Judgement: &tidemill.Judgement{Passed: true}})
	w.poll("it is the champion", func() bool { now, _ := p.table.Champion("m/bot-0"); return now.Version == 2 })
	w.poll("it is loaded", func() bool {
		m, state := p.m.Slot("m/bot-0").Use()
		if state != serving.Ready {
			return false
		}
		defer m.Release()
		return m.Ref().Version == 2
	})
	from = n
	send(100)
	versions := w.checkOnce(n)
	for i, in := range ofUsers(from, 100) {
		if want := []string{"2", "1"}[(from+i)%2]; versions[in.ID] != want {
			t.Errorf("after the promotion, version %s answers event %s, want %s", versions[in.ID], in.ID, want)
		}
	}
}

// A canary that cannot be loaded, or was refused, answers nothing, and no event waits for it.
func TestACanaryThatIsNone(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	w.canary("m/bot-0", tidemill.Canary{Share: 0.9, Hold: time.Hour})
	w.model(artifactOf("m/bot-0", 2), []byte("no model"))
	w.open(scorer())
	w.publish(ofUsers(0, 200)...)
	for id, version := range w.checkOnce(200) {
		if version != "1" {
			t.Errorf("event %s was answered by version %s", id, version)
		}
	}
}

// The canary has an input that the scorer's map does not name, or takes other sizes than the champion, so no event fits
// both. The champion answers all events, and the scorer reports why.
func TestACanaryWithOtherInputs(t *testing.T) {
	for input, says := range map[string]string{"z": "it has z", "x": "its input x takes 3 values, and that of version 1 takes 4"} {
		t.Run(input, func(t *testing.T) { canaryWithInput(t, input, says) })
	}
}

func canaryWithInput(t *testing.T, input, says string) {
	w := newWorld(t, 1)
	w.bots(1)
	w.canary("m/bot-0", tidemill.Canary{Share: 0.9, Hold: time.Hour})
	graph := proto{}.bytes(1, node("Relu", "y", input)).text(2, "other").bytes(11, valueInfo(input, 3)).bytes(12, valueInfo("y", 3))
	w.model(artifactOf("m/bot-0", 2), proto{}.number(1, 8).bytes(7, graph).bytes(8, proto{}.number(2, 13)))
	told := make(chan string, 10)
	p := &process{w: w, unloadable: func(model string, version, kept int, err error) {
		told <- fmt.Sprintf("%s@%d keeps %d: %v", model, version, kept, err)
	}}
	p.start(scorer())
	n := 0
	w.poll("the scorer reports it", func() bool {
		w.publish(ofUsers(n, 20)...)
		n += 20
		w.waitEvents(streamOut, n/2)
		return len(told) > 0
	})
	if got := <-told; !strings.HasPrefix(got, "m/bot-0 canary@2 keeps 0: cannot serve: ") || !strings.Contains(got, says) || len(told) > 0 {
		t.Errorf("it is reported that %s, and %d more", got, len(told))
	}
	if at := p.s.Standing(); !strings.Contains(at.LastError, says) {
		t.Errorf("the last error is %q", at.LastError)
	}
	if got := countByVersion(w.outputs(streamOut), "m/bot-0"); got["1"] != n/2 || len(got) != 1 {
		t.Errorf("the answers of %d events are %v", n/2, got)
	}
}

// No event waits for a new canary. Once it has begun, its users stay with it: a scorer that has to load it again lets
// the events of its model wait, and those of no other model.
func TestUsersStayWithACanaryThatIsLoadedAgain(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	var store shop
	p := w.impatient(store.refuse(artifactOf("m/bot-0", 2)))
	w.publish(ofUsers(0, 40)...)
	w.waitEvents(streamOut, 40)
	w.canary("m/bot-0", tidemill.Canary{Share: 0.3, By: "data.user"})
	w.poll("the canary is known", func() bool { return p.table.Canary("m/bot-0") != nil })
	w.publish(ofUsers(40, 200)...)
	if got := countByVersion(w.waitEvents(streamOut, 240), "m/bot-0"); got["1"] != 120 {
		t.Errorf("before it is loaded: %v", got)
	}
	store.open()
	n := 240
	send := func(many int) {
		w.publish(ofUsers(n, many)...)
		n += many
	}
	w.poll("the canary is loaded", func() bool {
		send(20)
		return countByVersion(w.waitEvents(streamOut, n), "m/bot-0")["2"] > 0
	})
	from := n
	waits := func() { // of 200 events, those of the other model are answered
		w.Helper()
		before := n
		send(200)
		w.waitEvents(streamOut, before+100)
		p.parks(100)
		store.open()
		w.checkShare(from, n)
		p.parks(0)
	}
	store.refuse(artifactOf("m/bot-0", 2))
	p.cache.Drop(&infer.Ref{Model: "m/bot-0", Version: 2, Artifact: artifactOf("m/bot-0", 2), Engine: infer.EngineAuto})
	waits()
	p.close()

	p = w.impatient(store.refuse(artifactOf("m/bot-0", 2)))
	waits()
	store.refuse(artifactOf("m/bot-0", 2))
	p.close()
	p = w.impatient(&store)
	from = n
	send(200)
	w.waitEvents(streamOut, n-100)
	w.fact(tidemill.TypeModelPromotionProposed, "m/bot-0", "run-m/bot-02", tidemill.PromotionProposed{Action: tidemill.ActionSettle, Version: 2, Run: "run-m/bot-02",
		Basis: 1, Turn: 1, Judgement: &tidemill.Judgement{}})
	versions := w.checkOnce(n)
	for _, in := range ofUsers(from, 200) {
		if versions[in.ID] != "1" {
			t.Errorf("after its end, event %s was answered by version %s", in.ID, versions[in.ID])
		}
	}
}
