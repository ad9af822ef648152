package deliver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// past returns the events' present range, without the first skip events of each partition.
func (w *install) past(skip int64) map[string][]tidemill.Range {
	w.Helper()
	ends, err := w.b.Ends(w.ctx, tidemill.StreamEvents)
	w.must(err)
	var all []tidemill.Range
	for _, end := range ends {
		all = append(all, tidemill.Range{Partition: end.Partition, From: min(skip, end.Offset), To: end.Offset})
	}
	return map[string][]tidemill.Range{tidemill.StreamEvents: all}
}

// replayRange publishes a command to replay a range, as the API does.
func (w *install) replayRange(trigger string, rate float64, streams map[string][]tidemill.Range) string {
	w.Helper()
	v, err := commands.Author{Names: w.names, By: "ada", Now: time.Now()}.Replay(tidemill.Replay{Trigger: trigger, Rate: rate, Streams: streams, From: "beginning", To: "end"})
	w.must(err)
	_, err = commands.Publish(w.ctx, w.p, &v)
	w.must(err)
	return v.ID
}

// endReports returns the reports of ended replays by command; all reports of a replay must be
// equal.
func (w *install) endReports() map[string]tidemill.ReplayedData {
	w.Helper()
	all := map[string]tidemill.ReplayedData{}
	ids := map[string]string{}
	_, err := w.b.ReadBack(w.ctx, []broker.Position{{Stream: tidemill.StreamCommands}}, func(in *broker.Incoming) {
		if in.Type != tidemill.TypeTriggerReplayed {
			return
		}
		var d tidemill.ReplayedData
		w.must(json.Unmarshal(in.Data, &d))
		if had, again := all[d.Replay]; again && (had != d || ids[d.Replay] != in.ID) {
			w.Errorf("replay %s ended as %+v and as %+v", d.Replay, had, d)
		}
		all[d.Replay], ids[d.Replay] = d, strings.Clone(in.ID)
	})
	if w.ctx.Err() == nil { // otherwise the caller reports what it waited for
		w.must(err)
	}
	return all
}

// waitEnd waits for a replay's end.
func (w *install) waitEnd(act string) (end tidemill.ReplayedData) {
	w.Helper()
	w.waitFor("the replay has ended", func() (over bool) { end, over = w.endReports()[act]; return over })
	return end
}

func TestARangeIsReplayed(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 3)
	first, to, other := newSink(t, nil), newSink(t, nil), newSink(t, nil)
	w.trigger("a", first.url, nil)
	w.trigger("b", other.url, nil)
	d := w.open()
	w.publish(90, 11)
	w.waitFor("all have come", func() bool { return first.count() == 90 && other.count() == 90 && w.committed() })
	streams := w.past(3)
	w.trigger("a", to.url, nil)
	w.must(d.Apply(w.ctx, w.config))
	act := w.replayRange("a", 0, streams)
	if end := w.waitEnd(act); end.Delivered != 81 || end.Failed != 0 || end.Left != 0 || end.Trigger != "a" {
		t.Errorf("it ended as %+v", end)
	}
	to.inAll(w, 81)
	// If a busy machine has lost a session, parked events are delivered again, live and
	// next to the replay. Between the two there is no order.
	if other.attempts() == 90 {
		to.inOrder()
	}
	if to.attempts() < 81 {
		t.Errorf("%d attempts", to.attempts())
	}
	w.waitFor("nobody goes on", func() bool { return d.rangeCount() == 0 })
}

func (d *Dispatcher) rangeCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ranges.running)
}

// Events of the range that the trigger does not want are skipped, also at the very end.
func TestDryRangesEnd(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 3)
	to := newSink(t, nil)
	w.trigger("a", to.url, func(t *config.Trigger) { t.When = []config.When{{Types: []string{"nothing"}}} })
	w.open()
	w.publish(50, 7)
	e, err := w.b.Exclusive(w.ctx, "test", broker.ProducerOptions{})
	w.must(err)
	fails := fmt.Errorf("no")
	for _, want := range []error{nil, fails} { // leaves markers, and events that do not match
		_ = e.Do(w.ctx, func(x *broker.ExclusiveTx) error {
			for p := range int32(3) {
				x.SendTo(w.ctx, tidemill.StreamEvents, p, &broker.View{ID: "x", Source: "/x", Type: "other"}, nil)
			}
			return want
		})
	}
	w.must(e.Close(w.ctx))
	if end := w.waitEnd(w.replayRange("a", 0, w.past(0))); end.Delivered != 0 || end.Failed != 0 {
		t.Errorf("it ended as %+v", end)
	}
	empty := map[string][]tidemill.Range{tidemill.StreamEvents: {{Partition: 1, From: 2, To: 2}}, "elsewhere": {{From: 0, To: 9}}}
	if end := w.waitEnd(w.replayRange("a", 0, empty)); end.Delivered != 0 || end.Left != 9 {
		t.Errorf("that of a stream that is not there ended as %+v", end)
	}
}

// Events of a forgotten key are not delivered, and the report counts them apart.
func TestARangeWithAForgottenKey(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	w.open()
	w.publish(60, 6)
	w.waitFor("all have come", func() bool { return to.count() == 60 && w.committed() })
	w.recordForgotten("k3")
	w.publish(6, 6) // one more event of each key
	w.waitFor("these have come", func() bool { return to.count() == 66 && w.committed() })
	if end := w.waitEnd(w.replayRange("a", 0, w.past(0))); end.Delivered != 56 || end.Forgotten != 10 || end.Failed != 0 || end.Left != 0 {
		t.Errorf("it ended as %+v", end)
	}
}

func TestWhatFailsInARangeIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	w.publish(60, 8)
	w.waitFor("all have come", func() bool { return to.count() == 60 && w.committed() })
	again := newSink(t, func(id string, try int) int {
		if id == "7" || id == "31" {
			return 400
		}
		return flaky(id, try)
	})
	w.trigger("a", again.url, nil)
	w.must(d.Apply(w.ctx, w.config))
	act := w.replayRange("a", 0, w.past(0))
	if end := w.waitEnd(act); end.Delivered != 58 || end.Failed != 2 {
		t.Errorf("it ended as %+v", end)
	}
	again.inOrder()
	again.inAll(w, 58)
	for _, l := range w.letters() {
		if l.Replay != act || l.Tried != 1 || l.Trigger != "a" || l.OriginalID != "7" && l.OriginalID != "31" {
			t.Errorf("a letter says %+v", l)
		}
	}
	book := w.book()
	again.set(nil)
	all := byKey(book, deadletters.Selection{Trigger: "a"})
	w.replay("a", 0, all)
	w.waitFor("its letters are replayed", func() bool { return book.Counts()["a"] == 0 && again.count() == 60 })
}

// newGate returns a sink that accepts the first events and refuses all others until it is
// opened. So a replay to it cannot end earlier, however long other steps take. taken
// returns the number of accepted events.
func newGate(t *testing.T, first int) (to *sink, taken func() int, open func()) {
	n, whole := 0, false // guarded by the sink's lock
	to = newSink(t, func(string, int) int {
		if n >= first && !whole {
			return http.StatusServiceUnavailable
		}
		n++
		return http.StatusOK
	})
	taken = func() int { to.mu.Lock(); defer to.mu.Unlock(); return n }
	open = func() { to.mu.Lock(); defer to.mu.Unlock(); whole = true }
	return to, taken, open
}

// patient gives a trigger enough attempts to wait for a closed gate.
func patient(t *config.Trigger) {
	t.Delivery.Attempts, t.Delivery.Backoff.First = 100_000, 50*time.Millisecond
}

// Two dispatchers share a replay. One dies, and live events are still delivered.
func TestARangesReplayOutlivesADispatcher(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 4)
	w.session = 2 * time.Second
	before, other := newSink(t, nil), newSink(t, nil)
	to, taken, open := newGate(t, 40)
	w.trigger("a", before.url, nil)
	w.trigger("b", other.url, nil)
	d := w.open()
	w.publish(160, 20)
	w.waitFor("all have come", func() bool { return before.count() == 160 && w.committed() })
	w.close(d)
	w.trigger("a", to.url, patient)
	one := w.open()
	two := w.open()
	w.waitFor("both have partitions", func() bool { return one.partitions() == 2 && two.partitions() == 2 })
	act := w.replayRange("a", 400, w.past(0))
	w.waitFor("both replay", func() bool { return one.replaying(act) == 2 && two.replaying(act) == 2 && to.count() > 20 })
	w.publish(20, 20)
	w.waitFor("live events come", func() bool { return other.count() == 180 })
	one.abandon()
	open()
	if end := w.waitEnd(act); end.Delivered != 160 || end.Failed != 0 {
		t.Errorf("it ended as %+v", end)
	}
	w.waitFor("all have come", func() bool { return to.count() == 180 })
	if n := taken(); n > 180+2*100 { // uncommitted deliveries are repeated
		t.Errorf("%d were taken", n)
	}
	w.waitFor("it is left", func() bool { return two.rangeCount() == 0 })
}

// replaying returns the number of a replay's partitions that a dispatcher has.
func (d *Dispatcher) replaying(act string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.ranges.running[act]
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ours)
}

func TestAPausedTriggersReplayWaits(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to, _, open := newGate(t, 110)
	w.trigger("a", to.url, patient)
	d := w.open()
	w.publish(100, 9)
	w.waitFor("all have come", func() bool { return to.count() == 100 && w.committed() })
	act := w.replayRange("a", 0, w.past(0))
	w.waitFor("some have come", func() bool { return to.attempts() > 120 })
	w.pause("a", true)
	w.waitFor("it is known", func() bool { return d.isPaused(act) })
	w.waitFor("nothing flies", func() bool { return d.flying("a") == 0 })
	tried, began := to.attempts(), time.Now()
	w.waitFor("a replay would have gone on", func() bool { return time.Since(began) > time.Second })
	if n := to.attempts(); n != tried {
		t.Errorf("%d attempts for a paused trigger", n-tried)
	}
	open()
	w.pause("a", false)
	if end := w.waitEnd(act); end.Delivered != 100 || to.attempts() < 200 { // a lost session makes further attempts
		t.Errorf("it ended as %+v after %d attempts", end, to.attempts())
	}
}

// isPaused reports whether a replay has applied the pause of its trigger everywhere.
func (d *Dispatcher) isPaused(act string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.ranges.running[act]
	if r == nil {
		return false // the replay is being reopened
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rests := d.commands.Now().TriggerPaused(r.act.Trigger)
	for _, s := range r.shards {
		s.mu.Lock()
		rests = rests && s.p.triggerState(r.act.Trigger).paused
		s.mu.Unlock()
	}
	return rests
}

func (d *Dispatcher) flying(trigger string) int64 { return d.senderOf(trigger).inFlight.Load() }

func TestAReplayEndsWithItsTrigger(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to, other := newSink(t, nil), newSink(t, nil)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Concurrency = 4 })
	w.trigger("b", other.url, nil)
	d := w.open()
	w.publish(100, 30)
	w.waitFor("all have come", func() bool { return to.count() == 100 && w.committed() })
	to.set(func(string, int) int { return 0 })
	act := w.replayRange("a", 0, w.past(0))
	w.waitFor("some are under way", func() bool { return to.attempts() >= 104 && d.waitingPast("a") > 0 })
	w.remove("a")
	w.must(d.Apply(w.ctx, w.config))
	if end := w.waitEnd(act); end.Left != 100 || end.Failed != 0 {
		t.Errorf("it ended as %+v", end)
	}
	if all := w.letters(); len(all) != 0 {
		t.Errorf("%d letters were written, of %s say", len(all), all[0].OriginalID)
	}
}

func (d *Dispatcher) waitingPast(trigger string) int {
	s := d.senderOf(trigger)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.past.n
}

// A replay needs its group until its end is reported, also while the trigger is paused.
func TestTheGroupOfAReplayEnds(t *testing.T) {
	s := &commands.State{}
	for n, c := range []struct {
		typ, id, data string
		ended         bool // whether the group of r1 has ended afterwards
	}{
		{tidemill.TypeSchedulePaused, "c0", `{}`, true}, // its request is not known
		{tidemill.TypeTriggerReplayRequested, "r1", `{"trigger":"a"}`, false},
		{tidemill.TypeTriggerPaused, "c2", `{}`, false},
		{tidemill.TypeTriggerReplayed, "c3", `{"replay":"r2"}`, false},
		{tidemill.TypeTriggerReplayed, "c4", `{"replay":"r1"}`, true},
	} {
		s.Apply(commands.Command{Offset: int64(n), ID: c.id, Type: c.typ, Subject: "a", Data: []byte(c.data)})
		if got := IsOfEndedReplay(replayGroup("r1"), s.Clone()); got != c.ended {
			t.Errorf("after %s %s: %v", c.typ, c.data, got)
		}
	}
	if IsOfEndedReplay(tidemill.TriggersGroup("events"), s) {
		t.Error("the group of a stream has ended")
	}
}

func TestPassOver(t *testing.T) {
	of := tidemill.Range{From: 10, To: 20}
	for name, c := range map[string]struct {
		committed, start int64
		want             rangeStart
	}{
		"fresh":                     {0, 0, rangeStart{10, 0}},
		"half way":                  {15, 0, rangeStart{15, 0}},
		"over":                      {20, 0, rangeStart{20, 0}},
		"behind it":                 {33, 0, rangeStart{33, 0}},
		"retention is behind":       {15, 12, rangeStart{15, 0}},
		"retention took some":       {12, 14, rangeStart{14, 2}},
		"retention took the rest":   {12, 30, rangeStart{20, 8}},
		"retention took it, ended":  {20, 30, rangeStart{20, 0}},
		"retention took all of it":  {0, 99, rangeStart{20, 10}},
		"retention is where it was": {0, 10, rangeStart{10, 0}},
	} {
		if got := rangeStartOf(of, c.committed, c.start); got != c.want {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
}

// The group asks again where to read a partition until it has committed an offset. Each lost offset counts once.
func TestLostOffsetsOfARangeCountOnce(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	w.publish(20, 1)
	w.waitFor("all have come", func() bool { return to.count() == 20 && w.committed() })
	act := tidemill.Replay{ID: "r", Trigger: "a", Streams: w.past(2)}
	d.mu.Lock()
	r := newRangeReplay(d, act, d.rangeTerms(act))
	d.mu.Unlock()
	for _, c := range []struct{ cut, committed, from, lost int64 }{{5, 0, 5, 3}, {5, 0, 5, 3}, {8, 0, 8, 6}, {8, 10, 10, 6}, {15, 10, 15, 11}, {15, 10, 15, 11}} {
		w.must(w.b.DeleteBelow(w.ctx, []broker.Position{{Stream: tidemill.StreamEvents, Offset: c.cut}}))
		at, err := r.assigned(w.ctx, []broker.Position{{Stream: tidemill.StreamEvents, Offset: c.committed}})
		w.must(err)
		if lost := testutil.ToFloat64(d.counts.unread.WithLabelValues("a")); at[0].Offset != c.from || lost != float64(c.lost) {
			t.Errorf("%+v: it is read from offset %d, and %v offsets are lost", c, at[0].Offset, lost)
		}
	}
	w.must(r.close(w.ctx))
}

func TestTheLiveGoOnBesideAReplay(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Concurrency = 2 })
	w.open()
	w.publish(400, 30)
	w.waitFor("all have come", func() bool { return to.count() == 400 && w.committed() })
	act := w.replayRange("a", 0, w.past(0))
	w.waitFor("it is under way", func() bool { return to.attempts() > 420 })
	w.publish(30, 30)
	w.waitFor("live events come before it ends", func() bool { return to.count() == 430 })
	if over := w.endReports(); len(over) != 0 && to.attempts() < 830 {
		t.Errorf("it ended early: %v", over)
	}
	if end := w.waitEnd(act); end.Delivered != 400 {
		t.Errorf("it ended as %+v", end)
	}
}

// A stream is created again while a range of it is replayed. The replay ends and says so, whether the new stream is shorter
// or longer than the range. None of its events counts as delivered.
func TestAReplaysStreamIsCreatedAgain(t *testing.T) {
	t.Parallel()
	for _, again := range []int{4, 300} {
		w := newInstall(t, 2)
		to := newSink(t, nil)
		w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Timeout = 300 * time.Millisecond })
		d := w.open()
		w.publish(100, 30)
		w.waitFor("all have come", func() bool { return to.count() == 100 && w.committed() })
		to.set(func(string, int) int { return 0 })
		act := w.replayRange("a", 0, w.past(0))
		w.waitFor("some are under way", func() bool { return to.attempts() > 104 && d.waitingPast("a") > 0 })
		w.must(w.servers.Cluster().DeleteTopic(w.names.Topic(tidemill.StreamEvents)))
		w.ensure()
		w.publish(again, 30)
		w.waitFor("the replay knows it", func() bool {
			told := 0
			for _, l := range w.letters() {
				if strings.Contains(l.Reason, "created again") && strings.Contains(l.Reason, act) {
					told++
				}
			}
			return told == 2
		})
		to.set(nil)
		if end := w.waitEnd(act); end.Left != 100 || end.Delivered != 0 || !strings.Contains(end.Error, "stream events was deleted and created again") {
			t.Errorf("it ended as %+v", end)
		}
	}
}
