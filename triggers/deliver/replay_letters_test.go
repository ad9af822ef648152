package deliver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// book opens the list of dead letters that people see.
func (w *install) book() *deadletters.Book {
	w.Helper()
	book, err := deadletters.Open(w.ctx, w.b, w.log)
	w.must(err)
	w.Cleanup(func() { _ = book.Close(w.ctx) })
	return book
}

// replay publishes a command to replay dead letters, as the API does.
func (w *install) replay(trigger string, rate float64, all []deadletters.Entry) string {
	w.Helper()
	act := tidemill.LetterReplayData{Trigger: trigger, Rate: rate}
	for _, e := range all {
		act.Letters = append(act.Letters, e.Ref())
	}
	v, err := commands.Author{Names: w.names, By: "ada", Now: time.Now()}.ReplayLetters(act)
	w.must(err)
	_, err = commands.Publish(w.ctx, w.p, &v)
	w.must(err)
	return v.ID
}

// receipts returns the receipts so far by dead letter; each dead letter may have one.
func (w *install) receipts() map[string]*deadletters.Receipt {
	w.Helper()
	all := map[string]*deadletters.Receipt{}
	for p := range int32(6) {
		at := map[string]bool{}
		_, err := w.b.ReadBack(w.ctx, []broker.Position{{Stream: tidemill.StreamDeadLetters, Partition: p}}, func(in *broker.Incoming) {
			if in.Type != tidemill.TypeEventResolved {
				at[strings.Clone(in.ID)] = true
				return
			}
			r, err := deadletters.ReadReceipt(&in.View)
			w.must(err)
			if !at[r.Letter] || r.Partition != p {
				w.Errorf("the receipt of %s is on partition %d, which does not have its letter", r.Letter, p)
			}
			if all[r.Letter] != nil && *all[r.Letter] != *r {
				w.Errorf("letter %s has receipts %+v and %+v", r.Letter, all[r.Letter], r)
			}
			all[r.Letter] = r
		})
		w.must(err)
	}
	return all
}

// failing adds a trigger with n dead letters.
func (w *install) failing(to *sink, n, keys int) *deadletters.Book {
	w.Helper()
	to.set(func(string, int) int { return 400 })
	w.publish(n, keys)
	book := w.book()
	w.waitFor("all have failed", func() bool { return book.Counts()["a"] == n && w.committed() })
	to.set(nil)
	return book
}

func TestDeadLettersAreReplayed(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 3)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	book := w.failing(to, 60, 7)
	tried := to.attempts()
	all := byKey(book, deadletters.Selection{Trigger: "a"})
	act := w.replay("a", 0, all)
	w.waitFor("all are resolved", func() bool { return book.Counts()["a"] == 0 })
	to.inOrder()
	if to.count() != 60 || to.attempts() != tried+60 {
		t.Errorf("%d came, in %d attempts", to.count(), to.attempts()-tried)
	}
	receipts := w.receipts()
	for _, e := range all {
		r := receipts[e.ID]
		if r == nil || r.Action != deadletters.Replayed || r.Outcome != deadletters.Delivered || r.By != "ada" || r.Command != act || r.Offset != e.At.Offset {
			t.Fatalf("letter %s has the receipt %+v", e.ID, r)
		}
	}
	w.waitFor("nothing is parked", func() bool { return parkedOf(d, "a") == 0 })
	w.replay("a", 0, all) // the second request is the same command
	w.publish(10, 7)
	w.waitFor("live events come", func() bool { return to.count() == 70 })
	if to.attempts() != tried+70 {
		t.Errorf("asked twice, it was replayed twice: %d attempts", to.attempts()-tried)
	}
}

// A command may name dead letters that an earlier command has resolved.
func TestWhatHasAReceiptIsNotReplayed(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	book := w.failing(to, 20, 5)
	all := byKey(book, deadletters.Selection{Trigger: "a"})
	w.replay("a", 0, all[:12])
	w.waitFor("some are resolved", func() bool { return book.Counts()["a"] == 8 })
	tried := to.attempts()
	w.replay("a", 0, all)
	w.waitFor("all are resolved", func() bool { return book.Counts()["a"] == 0 && parkedOf(d, "a") == 0 })
	if got := to.attempts() - tried; got != 8 {
		t.Errorf("%d attempts for the 8 letters that were left", got)
	}
	to.inAll(w, 20)
}

// A partition whose begun has expired knows no command, and gets all of them again. Dead
// letters with a receipt are skipped; the others are replayed.
func TestAPartitionThatForgotHearsAllActsAgain(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	book := w.failing(to, 20, 5)
	w.replay("a", 0, byKey(book, deadletters.Selection{Trigger: "a"}))
	w.waitFor("all are resolved", func() bool { return book.Counts()["a"] == 0 && parkedOf(d, "a") == 0 })
	tried := to.attempts()
	d.mu.Lock()
	l := d.pipelines[tidemill.StreamEvents]
	d.mu.Unlock()
	for _, s := range l.assignmentsNow() {
		s.apply(func(p *partition, _ millis) { p.progress = commandProgress{open: map[int64]int{}} })
	}
	notify(l.commandsRead)
	w.waitFor("all acts are known again", func() bool {
		known := true
		for _, s := range l.assignmentsNow() {
			s.mu.Lock()
			known = known && s.p.progress.next == d.commands.Now().Next() && len(s.p.progress.open) == 0
			s.mu.Unlock()
		}
		return known
	})
	w.publish(5, 5)
	// A live event whose answer takes long is parked as well.
	w.waitFor("live events come, and nothing else waits", func() bool { return to.count() == 25 && parkedOf(d, "a") == 0 })
	if got := to.attempts() - tried; got != 5 {
		t.Errorf("%d attempts for 5 events", got)
	}
}

func (s *sink) inAll(w *install, n int) {
	w.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) != n {
		w.Errorf("%d have come, not %d", len(s.got), n)
	}
}

func TestAReplayThatFailsIsALetterAgain(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	w.open()
	book := w.failing(to, 6, 2)
	to.set(func(string, int) int { return 403 })
	old := byKey(book, deadletters.Selection{})
	act := w.replay("a", 0, old)
	receipts := map[string]*deadletters.Receipt{}
	w.waitFor("all have failed again", func() bool { receipts = w.receipts(); return len(receipts) == 6 && onlyNew(book, old, 6) })
	for _, e := range old {
		r := receipts[e.ID]
		again, err := book.Find(r.NewLetter)
		if err != nil || r.Outcome != deadletters.FailedAgain || again.ID == e.ID || again.Source != e.Source || again.Replay != "" {
			t.Errorf("%+v has the receipt %+v and became %+v, %v", e, r, again, err)
		}
	}
	for _, l := range w.letters() {
		if l.Replay != "" && (l.Replay != act || l.Tried != 1) {
			t.Errorf("a letter says that it came of %+v", l)
		}
	}
	to.set(nil)
	w.replay("a", 0, byKey(book, deadletters.Selection{}))
	w.waitFor("the new ones are replayed", func() bool { return book.Counts()["a"] == 0 })
	to.inAll(w, 6)
	to.inOrder()
}

func TestAReplaysRateIsHeld(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 3)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	w.open()
	book := w.failing(to, 30, 10)
	began := time.Now()
	w.replay("a", 20, byKey(book, deadletters.Selection{}))
	w.publish(30, 10)
	w.waitFor("live events come", func() bool { return to.count() >= 30 })
	w.waitFor("all are resolved", func() bool { return book.Counts()["a"] == 0 })
	if took := time.Since(began); took < 29*time.Second/20 {
		t.Errorf("30 letters at 20 a second took %s", took)
	}
}

func TestAPausedTriggersLettersWait(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to, other := newSink(t, nil), newSink(t, nil)
	w.trigger("a", to.url, nil)
	w.trigger("b", other.url, nil)
	d := w.open()
	book := w.failing(to, 10, 3)
	w.pause("a", true)
	w.waitFor("it holds", func() bool { return d.pauses("a") })
	tried := to.attempts()
	w.replay("a", 0, byKey(book, deadletters.Selection{}))
	w.publish(20, 3)
	w.waitFor("the other has its events", func() bool { return other.count() == 30 })
	if to.attempts() != tried {
		t.Error("something was sent to a paused trigger")
	}
	w.pause("a", false)
	w.waitFor("all have come", func() bool { return to.count() == 30 && book.Counts()["a"] == 0 })
}

// If a dispatcher dies in the middle, another continues the replay.
func TestAReplayOutlivesTheDispatcher(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 3)
	w.session = 2 * time.Second
	to := newSink(t, nil)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Concurrency = 8 })
	d := w.open()
	book := w.failing(to, 100, 15)
	w.replay("a", 100, byKey(book, deadletters.Selection{}))
	for range 3 {
		had := to.count()
		w.waitFor("some have come", func() bool { return to.count() >= min(had+15, 100) })
		d.abandon()
		d = w.open()
	}
	w.waitFor("all are resolved", func() bool { return book.Counts()["a"] == 0 })
	to.inOrder()
	to.inAll(w, 100)
	w.waitFor("nothing is parked", func() bool { return parkedOf(d, "a") == 0 && w.committed() })
}

// lettersWithoutTrigger returns an install with eight dead letters of a trigger that the config has lost.
func lettersWithoutTrigger(t *testing.T) (*install, *sink, *Dispatcher, *deadletters.Book) {
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	book := w.failing(to, 8, 3)
	w.remove("a")
	w.must(d.Apply(w.ctx, w.config))
	w.waitFor("nobody reads the stream", func() bool { return d.pipelineCount() == 0 })
	return w, to, d, book
}

// If the trigger is gone, the command is still carried out: new dead letters give the reason.
func TestLettersOfATriggerThatIsGone(t *testing.T) {
	t.Parallel()
	w, to, d, book := lettersWithoutTrigger(t)
	old := byKey(book, deadletters.Selection{})
	w.replay("a", 0, old)
	w.waitFor("there are receipts", func() bool { return len(w.receipts()) == 8 })
	w.waitFor("there are new letters", func() bool { return onlyNew(book, old, 8) })
	w.waitFor("nobody reads the stream", func() bool { return d.pipelineCount() == 0 })
	w.trigger("a", to.url, nil)
	w.must(d.Apply(w.ctx, w.config))
	w.must(d.Ready(w.ctx))
	w.replay("a", 0, byKey(book, deadletters.Selection{}))
	w.waitFor("they come after all", func() bool { return to.count() == 8 && book.Counts()["a"] == 0 })
}

// onlyNew reports whether n dead letters are open, none of them an old one. It asks the
// book, which follows the log with a delay.
func onlyNew(book *deadletters.Book, old []deadletters.Entry, n int) bool {
	return book.Counts()["a"] == n && !slices.ContainsFunc(old, func(e deadletters.Entry) bool { return book.IsOpen(e.ID) })
}

func (d *Dispatcher) pipelineCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.pipelines)
}

// Commands with unknown dead letters delay nothing.
func TestStrangeActsArePassedOver(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	w.open()
	book := w.failing(to, 4, 2)
	all := byKey(book, deadletters.Selection{})
	strange := slices.Clone(all)
	strange[0].At.Offset = 1 << 40
	strange[1].At.Partition = 77
	strange[2].ID = "another"
	strange[3].Source.Stream = "elsewhere"
	w.replay("a", 0, strange)
	w.replay("b", 0, all[:1])
	w.replay("a", 0, all)
	w.waitFor("the others are resolved", func() bool { return book.Counts()["a"] == 0 })
	if n := to.count(); n != 4 {
		t.Errorf("%d have come", n)
	}
}

func TestPace(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	p := &pace{act: &commands.LetterReplay{At: at, Rate: 2, First: 10}}
	if got := p.dueTime(3).Sub(at); got != 6500*time.Millisecond {
		t.Errorf("the 14th at 2 a second is due after %s", got)
	}
	p.goOn(3, at.Add(7*time.Second)) // a small delay does not count
	p.goOn(3, at.Add(6*time.Second)) // an early time does not count either
	if got := p.dueTime(5).Sub(p.dueTime(3)); got != time.Second || p.late != 0 {
		t.Errorf("the next comes %s later, all is %s late", got, p.late)
	}
	p.goOn(3, at.Add(time.Hour)) // after a pause the replay continues at its rate
	if got := p.dueTime(3).Sub(at); got != time.Hour {
		t.Errorf("after an hour it is due at %s", got)
	}
	if got := p.dueTime(5).Sub(at); got != time.Hour+time.Second {
		t.Errorf("after an hour the next but one is due at %s", got)
	}
	p = &pace{act: &commands.LetterReplay{At: at, Rate: 1e-300, First: 1}}
	if got := p.dueTime(5).Sub(at); got != longestPace {
		t.Errorf("at nearly no rate it is due after %s", got)
	}
	p = &pace{act: &commands.LetterReplay{At: at}}
	p.goOn(3, at.Add(time.Hour))
	if !p.dueTime(1_000_000).Equal(at) {
		t.Error("without a rate not all are due at once")
	}
}

// The clock of the gateway that wrote the command is ahead. The dead letters do not wait for ours to catch up.
func TestPaceOfACommandFromTheFuture(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for rate, want := range map[float64]int{0: 3, 1: 1} {
		as := &assignment{p: &partition{number: 7}, paces: map[int64]*pace{}}
		a := &letterReplay{act: commands.LetterReplay{At: now.Add(time.Hour), Rate: rate}, of: map[int32][]askedLetter{7: {{index: 0}, {index: 1}, {index: 2}}}}
		if n, _ := as.pace(a, 0, now); n != want {
			t.Errorf("%d are due at %g a second, want %d", n, rate, want)
		}
		if n, _ := as.pace(a, 1, now.Add(time.Second)); n == 0 {
			t.Errorf("none is due at %g a second after a second", rate)
		}
	}
}

func TestLetterRef(t *testing.T) {
	want := letterRef{3, 1 << 40, "a/b"}
	if got, err := parseLetterRef(want.String()); got != want || err != nil {
		t.Errorf("%v became %v, %v", want, got, err)
	}
	for _, text := range []string{"", "1", "1/2", "x/1/y", "1/x/y", fmt.Sprint(1<<40, "/1/y")} {
		if _, err := parseLetterRef(text); err == nil {
			t.Errorf("%q names a letter", text)
		}
	}
}

func byKey(book *deadletters.Book, of deadletters.Selection) (all []deadletters.Entry) {
	book.ByKey(of, func(e deadletters.Entry) { all = append(all, e) })
	return all
}
