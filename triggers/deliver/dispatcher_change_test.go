package deliver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/deadletters"
)

func TestANewTriggerBeginsAtTheLatest(t *testing.T) {
	w := newInstall(t, 3)
	old, young := newSink(t, nil), newSink(t, nil)
	w.trigger("old", old.url, nil)
	d := w.open()
	w.publish(60, 10)
	w.trigger("young", young.url, nil)
	w.must(d.Apply(w.ctx, w.config))
	w.must(d.Ready(w.ctx))
	before := w.n
	w.publish(60, 10)
	// Events that were published earlier and not yet read may reach it too.
	all := func() bool {
		young.mu.Lock()
		defer young.mu.Unlock()
		for n := before; n < w.n; n++ {
			if young.tries[fmt.Sprint(n)] == 0 {
				return false
			}
		}
		return true
	}
	w.waitFor("both have theirs", func() bool { return old.count() == 120 && all() })
	w.close(d)
	w.publish(30, 10)
	w.open()
	w.waitFor("both go on", func() bool { return old.count() == 150 && all() })
}

// No partition has an owner while events arrive. A dispatcher may have known the new trigger before these, and died. So the
// trigger gets them, but none that was read before.
func TestANewTriggerGetsUnreadEvents(t *testing.T) {
	w := newInstall(t, 3)
	old, young := newSink(t, nil), newSink(t, nil)
	w.trigger("old", old.url, nil)
	d := w.open()
	w.publish(30, 10)
	w.waitFor("the old trigger has its events", func() bool { return old.count() == 30 })
	w.close(d)
	before := w.n
	w.publish(30, 10)
	w.trigger("young", young.url, nil)
	w.open()
	w.waitFor("both have the unread events", func() bool { return old.count() == 60 && young.count() == 30 })
	young.mu.Lock()
	defer young.mu.Unlock()
	for n := range before {
		if young.tries[fmt.Sprint(n)] != 0 {
			t.Errorf("the new trigger got event %d, which was read before", n)
		}
	}
}

func TestARemovedTriggersEventsBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	gone, other := newSink(t, func(string, int) int { return 500 }), newSink(t, nil)
	w.trigger("gone", gone.url, func(t *config.Trigger) { t.Delivery.Attempts = 1000 })
	w.trigger("other", other.url, nil)
	d := w.open()
	w.publish(40, 5)
	w.waitFor("it is parked", func() bool { return parkedOf(d, "gone") == 40 && other.count() == 40 })
	w.remove("gone")
	w.must(d.Apply(w.ctx, w.config))
	w.waitFor("there are letters", func() bool { return len(w.letters()) >= 40 })
	for _, l := range w.letters() {
		if l.Trigger != "gone" || !strings.Contains(l.Reason, "no longer in the config") {
			t.Errorf("the letter of %s says: %s", l.OriginalID, l.Reason)
		}
	}
	w.remove("other")
	w.must(d.Apply(w.ctx, w.config))
	w.waitFor("nobody reads the stream", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.pipelines) == 0
	})
}

// parkAndRemove parks ten events of a trigger and removes the trigger from the config, which it does not apply.
func (w *install) parkAndRemove() *Dispatcher {
	w.Helper()
	gone := newSink(w, func(string, int) int { return 500 })
	w.trigger("gone", gone.url, func(t *config.Trigger) { t.Delivery.Attempts = 1000 })
	d := w.open()
	w.publish(10, 5)
	w.waitFor("it is parked", func() bool { return parkedOf(d, "gone") == 10 })
	w.remove("gone")
	return d
}

// The parked events of a trigger that was removed while no dispatcher ran are found at the start.
func TestARemovedTriggersEventsAreFoundAtTheStart(t *testing.T) {
	w := newInstall(t, 2)
	w.close(w.parkAndRemove())
	w.open()
	w.waitFor("there are letters", func() bool { return len(w.letters()) == 10 })
}

// So are those of a stream that was removed with its trigger.
func TestARemovedStreamsEventsAreFoundAtTheStart(t *testing.T) {
	w := newInstall(t, 2)
	w.close(w.parkAndRemove())
	next := *w.config
	next.Streams = slices.DeleteFunc(slices.Clone(next.Streams), func(s config.Stream) bool { return s.Name == tidemill.StreamEvents })
	w.config = &next
	d := w.open()
	w.waitFor("there are letters", func() bool { return len(w.letters()) == 10 })
	w.waitFor("nobody reads the stream", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.pipelines) == 0
	})
}

func TestPausedEventsWait(t *testing.T) {
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	w.pause("a", true)
	w.waitFor("it is known", func() bool { return d.commands.Now().TriggerPaused("a") })
	w.publish(50, 5)
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 50-int64(to.count()) && w.committed() })
	w.close(d)
	had := to.count()
	d = w.open()
	w.publish(50, 5)
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 100-int64(had) && w.committed() })
	if to.count() != had {
		t.Errorf("%d were sent while it was paused", to.count()-had)
	}
	w.pause("a", false)
	w.waitFor("all have come", func() bool { return to.count() == 100 })
	to.inOrder()
}

// pauses reports whether a pause has been applied on all partitions, which happens after
// the dispatcher knows it.
func (d *Dispatcher) pauses(trigger string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	holds := d.commands.Now().TriggerPaused(trigger)
	for _, l := range d.pipelines {
		for _, s := range l.assignmentsNow() {
			s.mu.Lock()
			holds = holds && s.p.triggerState(trigger).paused
			s.mu.Unlock()
		}
	}
	return holds
}

func TestRefusedEventsBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, func(id string, _ int) int {
		switch id {
		case "3":
			return 400
		case "5":
			return 503
		}
		return 200
	})
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Attempts = 4 })
	w.open()
	w.publish(10, 2)
	w.waitFor("all have ended", func() bool { return to.count() == 8 && len(w.letters()) == 2 && w.committed() })
	to.inOrder()
	for _, l := range w.letters() {
		want := map[string]int{"3": 1, "5": 4}[l.OriginalID]
		if l.Tried != want || len(l.Attempts) != want || l.Trigger != "a" || l.Attempts[0].Status == 0 {
			t.Errorf("the letter of %s reports %d tries: %+v", l.OriginalID, l.Tried, l)
		}
		if v, err := l.Original(); err != nil || v.ID != l.OriginalID || len(v.Foreign) != 0 {
			t.Errorf("the letter holds %+v, %v", v, err)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	times := make(chan time.Time, 10)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		times <- time.Now()
		if len(times) == 1 {
			rw.Header().Set("Retry-After", "1")
			rw.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	w.trigger("a", server.URL, func(t *config.Trigger) { t.Delivery.Backoff.First = time.Millisecond })
	w.open()
	w.publish(1, 1)
	w.waitFor("it was tried twice", func() bool { return len(times) == 2 })
	if first, second := <-times, <-times; second.Sub(first) < time.Second {
		t.Errorf("it was tried again after %s", second.Sub(first))
	}
}

func TestRepliesArePublished(t *testing.T) {
	w := newInstall(t, 2)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "mine", "Ce-Source": "/fn", "Ce-Type": "invoice", "Ce-Subject": r.Header.Get("Ce-Subject")} {
			rw.Header().Set(name, value)
		}
	}))
	t.Cleanup(server.Close)
	got := newSink(t, nil)
	w.trigger("bill", server.URL, nil)
	w.trigger("archive", got.url, func(t *config.Trigger) { t.When = []config.When{{Types: []string{"invoice"}}} })
	d := w.open()
	w.publish(20, 4)
	w.waitFor("all replies have come", func() bool { return got.count() == 20 })
	ids := map[string]bool{}
	for p := range int32(2) {
		_, err := w.b.ReadBack(w.ctx, []broker.Position{{Stream: tidemill.StreamEvents, Partition: p}}, func(in *broker.Incoming) {
			if in.Type == "invoice" {
				cause, _ := in.Attribute(tidemill.AttrCausationID)
				if ids[in.ID] || in.ID == "mine" || cause == "" {
					t.Errorf("reply %s, caused by %q", in.ID, cause)
				}
				ids[strings.Clone(in.ID)] = true
			}
		})
		w.must(err)
	}
	if len(ids) != 20 {
		t.Errorf("%d replies", len(ids))
	}
	w.waitFor("they are counted", func() bool {
		for _, s := range d.Standing() {
			if s.Name == "bill" {
				return s.Replies == 20 && s.Delivered == 20
			}
		}
		return false
	})
}

// The stream of a reply is created while the reply is published: its topic was deleted, and is created again.
func TestAReplyWaitsForItsStream(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	w.config.Streams = append(w.config.Streams, config.Stream{Name: "bills", Types: []string{"invoice"}, Partitions: 1, Retention: time.Hour})
	asked := make(chan bool, 10)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "mine", "Ce-Source": "/fn", "Ce-Type": "invoice"} {
			rw.Header().Set(name, value)
		}
		asked <- true
	}))
	t.Cleanup(server.Close)
	w.trigger("bill", server.URL, nil)
	d := w.open()
	w.publish(1, 1)
	<-asked
	_, err := w.b.EnsureStreams(w.ctx, []broker.StreamSpec{{Name: "bills", Partitions: 1, Retention: time.Hour}}, broker.EnsureOptions{})
	w.must(err)
	w.waitFor("the reply is published", func() bool { return d.Standing()[0].Replies == 1 })
	if letters := w.letters(); len(letters) > 0 {
		t.Errorf("dead letters: %+v", letters)
	}
}

func TestKafkaMayBeAway(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, flaky)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Backoff.First = 150 * time.Millisecond })
	w.open()
	w.publish(100, 10)
	w.waitFor("some have come", func() bool { return to.count() > 20 })
	w.must(w.servers.Close())
	w.serve()
	w.publish(100, 10)
	w.waitFor("all have come", func() bool { return to.count() == 200 })
	to.inOrder()
	w.waitFor("all is committed", w.committed)
}

func TestChangedPoliciesHoldAtOnce(t *testing.T) {
	w := newInstall(t, 1)
	broken, mended := newSink(t, func(string, int) int { return 500 }), newSink(t, nil)
	w.trigger("a", broken.url, func(t *config.Trigger) { t.Delivery.Attempts = 1000 })
	d := w.open()
	w.publish(30, 3)
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 30 })
	w.trigger("a", mended.url, nil)
	w.must(d.Apply(w.ctx, w.config))
	w.waitFor("all have come", func() bool { return mended.count() == 30 })
	mended.inOrder()
}

func TestRatesAreHeld(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Rate = 50 })
	d := w.open()
	began := time.Now()
	w.publish(120, 40)
	w.waitFor("all have come", func() bool { return to.count() == 120 })
	if took := time.Since(began); took < time.Second { // a burst of one second, and then the rate
		t.Errorf("120 events at 50 a second took %s", took)
	}
	to.inOrder()
	if parkedOf(d, "a") < 0 {
		t.Error("the dispatcher has no standing of the trigger")
	}
}

// The dispatchers divide a rate by the partitions that Kafka has, not by those that the config wants.
func TestTheShareOfARateIsThatOfKafkasPartitions(t *testing.T) {
	t.Parallel()
	for _, wanted := range []int{1, 4} {
		w := newInstall(t, 2)
		w.trigger("a", newSink(t, nil).url, func(t *config.Trigger) { t.Delivery.Rate = 50 })
		for i := range w.config.Streams {
			if w.config.Streams[i].Name == tidemill.StreamEvents {
				w.config.Streams[i].Partitions = wanted
			}
		}
		both := []*Dispatcher{w.open(), w.open()}
		shareOf := func(d *Dispatcher) float64 {
			s := (*d.senders.Load())["a"]
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.share
		}
		w.waitFor(fmt.Sprint("each has a half, and not a share of ", wanted), func() bool { return shareOf(both[0]) == 0.5 && shareOf(both[1]) == 0.5 })
	}
}

// An event that matches several filters of a trigger is delivered once.
func TestFiltersAreHeld(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, func(t *config.Trigger) {
		t.When = []config.When{{Types: []string{"order"}, Where: "subject = 'k1'"}, {Types: []string{"order"}, Where: "subject LIKE 'k1%'"}}
	})
	w.open()
	w.publish(40, 4)
	w.waitFor("all is committed", w.committed)
	w.waitFor("those that match have come", func() bool { return to.count() == 10 })
	if to.attempts() != 10 {
		t.Errorf("%d attempts for 10 events that match two filters of one trigger", to.attempts())
	}
}

// halted ends the loop that follows the commands and repairs pipelines, so that the test calls its parts.
func (d *Dispatcher) halted() *Dispatcher {
	d.stop()
	d.running.Wait()
	return d
}

// A stream's pipeline cannot be opened while the config loses its only trigger, and Kafka does not answer. The
// parked events are found once Kafka answers.
func TestParkedEventsAreSearchedForAgain(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	d := w.parkAndRemove().halted()
	d.mu.Lock()
	d.drop(w.ctx, d.pipelines[tidemill.StreamEvents])
	d.mu.Unlock()
	away, cancel := context.WithCancel(w.ctx)
	cancel()
	w.must(d.Apply(away, w.config))
	w.must(d.Apply(w.ctx, w.config))
	if d.pipelineCount() != 1 {
		t.Fatal("no dispatcher serves the parked events")
	}
	w.waitFor("there are letters", func() bool { return len(w.letters()) == 10 })
}

// Kafka does not answer when a command is read whose dead letters are of a stream without triggers.
func TestAStreamOfDeadLettersIsSearchedForAgain(t *testing.T) {
	t.Parallel()
	w, _, d, book := lettersWithoutTrigger(t)
	next := d.halted().commands.Now().Next()
	w.replay("a", 0, byKey(book, deadletters.Selection{}))
	w.waitFor("the command is read", func() bool { return d.commands.Now().Next() > next })
	away, cancel := context.WithCancel(w.ctx)
	cancel()
	d.mu.Lock()
	for _, ctx := range []context.Context{away, w.ctx} {
		d.followCommands(ctx)
		d.reconcile(ctx)
	}
	d.mu.Unlock()
	if d.pipelineCount() != 1 {
		t.Fatal("no dispatcher replays the dead letters")
	}
	w.waitFor("there are receipts", func() bool { return len(w.receipts()) == 8 })
}

// The config loses a trigger together with its stream, and gets the stream back while a dispatcher ends the parked
// events, or after that. Each event becomes one dead letter.
func TestParkedEventsOfAStreamThatComesBack(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	w.close(w.parkAndRemove())
	whole := w.config
	without := *whole
	without.Streams = slices.DeleteFunc(slices.Clone(whole.Streams), func(s config.Stream) bool { return s.Name == tidemill.StreamEvents })
	w.config = &without
	d := w.open()
	w.must(d.Apply(w.ctx, whole))
	w.waitFor("there are letters, and no dispatcher reads the stream", func() bool { return len(w.letters()) >= 10 && d.pipelineCount() == 0 })
	if n := len(w.letters()); n != 10 {
		t.Errorf("10 events were parked, and there are %d dead letters", n)
	}
}

// A dispatcher still has the trigger in its config and parked events in its partitions. Two later dispatchers, which do
// not have the trigger, get none or some of the partitions. They stay until the events of all partitions have ended.
func TestADispatcherStaysForThePartitionsOfAnother(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 3} {
		w := newInstall(t, partitions)
		old := w.parkAndRemove()
		both := []*Dispatcher{w.open().halted(), w.open().halted()}
		w.waitFor("they have nothing to do", func() bool {
			had := 0
			for _, d := range both {
				if own, done := d.pipelines[tidemill.StreamEvents].ownDone(); done {
					had += len(own)
				}
			}
			return had == partitions-1
		})
		for _, d := range both {
			d.mu.Lock()
			d.reconcile(w.ctx)
			d.mu.Unlock()
			if d.pipelineCount() != 1 {
				t.Fatalf("a dispatcher has left although parked events wait in one of %d partitions", partitions)
			}
		}
		w.close(old)
		w.waitFor("there are letters, and no dispatcher reads the stream", func() bool {
			for _, d := range both {
				d.mu.Lock()
				for _, l := range d.pipelines {
					l.searched = time.Time{}
				}
				d.reconcile(w.ctx)
				d.mu.Unlock()
			}
			return len(w.letters()) == 10 && both[0].pipelineCount()+both[1].pipelineCount() == 0
		})
	}
}

// A stream cannot be served, and then the config loses its trigger. The dispatcher is ready again.
func TestAFaultEndsWithItsTrigger(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	next := *w.config
	next.Streams = append(slices.Clone(next.Streams), config.Stream{Name: "sales", Partitions: 1, Types: []string{"sale"}}) // Kafka does not have it
	w.config = &next
	w.trigger("b", to.url, func(t *config.Trigger) { t.When[0].Types = []string{"sale"} })
	w.must(d.Apply(w.ctx, w.config))
	if c := d.Check(); c.Status != api.Failed || !strings.Contains(c.Detail, "sales") {
		t.Fatalf("%+v", c)
	}
	w.remove("b")
	w.must(d.Apply(w.ctx, w.config))
	if c := d.Check(); c.Status != api.OK {
		t.Errorf("%+v", c)
	}
}
