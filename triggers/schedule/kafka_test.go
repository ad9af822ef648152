package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// The event of a tick as its receivers see it.
func TestATick(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.controller(Options{}, config.Schedule{Name: "nightly", Cron: "* * * * * *", TimeZone: "Europe/Berlin", Missed: config.MissedSkip, Keys: []string{"bot-1"}})
	w.poll("it ticks", func() bool { return len(w.committedEvents()) > 0 })
	w.close(k)
	v := w.committedEvents()[0]
	at, err := time.Parse(time.RFC3339, v.Time)
	w.must(err)
	berlin, err := time.LoadLocation("Europe/Berlin")
	w.must(err)
	schedule, _ := v.Attribute(tidemill.AttrSchedule)
	want := tick{Schedule: "nightly", Key: "bot-1", Scheduled: at}
	if v.ID != want.id() || v.Type != "schedule-tick" || v.Source != "/tidemill/test/controller" || v.Subject != "bot-1" || schedule != "nightly" ||
		v.DataSchema != "https://tidemill.dev/schemas/schedule-tick/1" || string(v.Data) != `{"scheduled":"`+at.In(berlin).Format(time.RFC3339)+`","missed":0}` {
		t.Errorf("%+v %s", v, v.Data)
	}
}

func TestMissedWhileNothingRan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := time.Now().UTC().Add(-10 * time.Minute)
	s := config.Schedule{Name: "s", Cron: "* * * * *", TimeZone: "UTC", Missed: config.MissedSkip}
	w.write(mark{Turn: "t", At: before, Full: true, States: map[string]state{"s": begun(&s, before)}})
	w.controller(Options{}, s)
	w.poll("it ticks", func() bool { return len(w.committedEvents()) > 0 })
	all := w.committedEvents()
	v := slices.MinFunc(all, func(a, b broker.View) int { return strings.Compare(a.Time, b.Time) }) // the ticks are on several partitions
	at, err := time.Parse(time.RFC3339, v.Time)
	w.must(err)
	want := int(at.Sub(before.Truncate(time.Minute))/time.Minute) - 1
	if n, err := missedOf(&v); err != nil || n != want || n < 7 {
		t.Errorf("%s: %d missed, want %d: %v", v.Data, n, want, err)
	}
}

// Without a lease two controllers take the clock from each other all the time.
func TestTwoControllersFight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := keysOf(40)
	a := w.controller(Options{Lease: 200 * time.Millisecond}, everySecond(keys...))
	b := w.controller(Options{Lease: 200 * time.Millisecond}, everySecond(keys...))
	w.poll("there are ticks of six seconds", func() bool { return len(w.firings()) >= 6*len(keys) })
	w.close(a)
	w.close(b)
	w.checkWhole(keys...)
}

func TestRedisIsFlushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := keysOf(5)
	for range 3 {
		w.controller(Options{Redis: w.redis}, everySecond(keys...))
	}
	for n := range 5 {
		w.poll("it goes on", func() bool { return len(w.firings()) > n*len(keys) })
		w.must(w.redis.FlushAll(w.ctx()).Err())
	}
	w.checkWhole(keys...)
}

// The lease is longer than a busy machine stops, so that it does not expire.
func TestOneIsActiveAndTheOtherTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.controller(Options{Redis: w.redis, Lease: 20 * time.Second}, everySecond())
	w.active(a)
	b := w.controller(Options{Redis: w.redis, Lease: 20 * time.Second}, everySecond())
	w.poll("it ticks twice", func() bool { return len(w.committedEvents()) >= 2 })
	if s := b.Status(); s.Active || s.Err != nil {
		t.Errorf("next to an active controller: %+v", s)
	}
	w.close(a)
	w.active(b)
	w.poll("it ticks twice more", func() bool { return len(w.committedEvents()) >= 4 })
	w.checkWhole("")
}

// A controller that stops within a transaction does not delay the next one. Its ticks are
// not visible, and its transaction fails with ErrSuperseded.
func TestAControllerThatStopsWithinATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dead, err := w.b.Exclusive(w.ctx(), reader, broker.ProducerOptions{})
	w.must(err)
	sent, wake, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- dead.Do(w.ctx(), func(tx *broker.ExclusiveTx) error {
			for _, at := range []time.Time{time.Now().Truncate(time.Second), time.Now().Truncate(time.Second).Add(time.Second)} {
				v := (&tick{Schedule: "s", Scheduled: at}).view(names(t))
				tx.SendTo(w.ctx(), tidemill.StreamEvents, 0, &v, nil)
			}
			close(sent)
			<-wake
			return nil
		})
	}()
	<-sent
	w.controller(Options{}, everySecond())
	w.poll("it ticks", func() bool { return len(w.committedEvents()) >= 2 })
	close(wake)
	if err := <-ended; !errors.Is(err, broker.ErrSuperseded) {
		t.Errorf("the dead controller's transaction: %v", err)
	}
	w.must(dead.Close(w.ctx()))
	w.poll("it ticks on", func() bool { return len(w.committedEvents()) >= 4 })
	w.checkWhole("")
}

// hourly returns a schedule that is not due while a test runs: its last time was ten
// minutes ago.
func hourly(missed config.Missed) (s config.Schedule, last time.Time) {
	last = time.Now().UTC().Add(-10 * time.Minute).Truncate(time.Minute)
	cron := fmt.Sprintf("%d * * * *", last.Minute())
	return config.Schedule{Name: "s", Cron: cron, TimeZone: "UTC", Missed: missed, Keys: []string{"a", "b", "c"}}, last
}

// The predecessor's transaction was torn: its mark is readable, and one of its ticks is
// on the stream. Only the other ticks are sent.
func TestATornTransactionWithItsMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, last := hourly(config.MissedSkip)
	ends := w.ends()
	w.send(tick{Schedule: "s", Key: "b", Scheduled: last})
	done := begun(&s, last)
	done.Last = last
	w.write(mark{Turn: "t", At: last, Full: true, States: map[string]state{"s": done}, Ends: ends,
		Sent: []batch{{Schedule: "s", Scheduled: last, Missed: 7, Keys: []string{"a", "b", "c"}}}})
	k := w.controller(Options{}, s)
	w.poll("the others are there", func() bool { return len(w.committedEvents()) >= 3 })
	w.close(k)
	k = w.controller(Options{}, s) // the sent ticks are known after a further takeover, too
	w.active(k)
	count := w.firings()
	for _, key := range s.Keys {
		if n := count[stamp(last)+" "+key]; n != 1 {
			t.Errorf("%s is there %d times", key, n)
		}
	}
	for _, v := range w.committedEvents() {
		if n, err := missedOf(&v); err != nil || n != 7 && v.Subject != "b" {
			t.Errorf("%s: %s, %v", v.Subject, v.Data, err)
		}
	}
}

// The opposite: one tick of a torn transaction is on the stream, and its mark is not.
func TestATornTransactionWithoutItsMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, last := hourly(config.MissedAll)
	before := begun(&s, last.Add(-time.Minute))
	w.write(mark{Turn: "t", At: before.Through, Full: true, States: map[string]state{"s": before}, Ends: w.ends()})
	w.send(tick{Schedule: "s", Key: "b", Scheduled: last})
	w.controller(Options{}, s)
	w.poll("the others are there", func() bool { return len(w.firings()) == 3 })
	for name, n := range w.firings() {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}

// A start reads only from the newest full mark on.
func TestReadBeginsWithTheNewestFullMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		k := w.controller(Options{}, everySecond())
		w.active(k)
		n := len(w.committedEvents())
		w.poll("it ticks", func() bool { return len(w.committedEvents()) > n })
		w.close(k)
	}
	at, err := w.b.Committed(w.ctx(), reader, []broker.Position{{Stream: tidemill.StreamClock}})
	w.must(err)
	var offsets []int64
	w.marks(func(e *broker.Incoming) {
		if strings.Contains(string(e.Data), `"full":true`) {
			offsets = append(offsets, e.Offset)
		}
	})
	if len(offsets) != 3 || at[0].Offset != offsets[2] {
		t.Errorf("reading begins at %d, and full marks lie at %v", at[0].Offset, offsets)
	}
	book, err := Read(w.ctx(), w.b)
	w.must(err)
	if last, ok := book.Last("s"); !ok || time.Since(last) > time.Hour {
		t.Errorf("last: %s %v", last, ok)
	}
	if _, ok := book.Last("none"); ok {
		t.Error("a schedule that is not there has ticked")
	}
}

func (w *world) marks(fn func(*broker.Incoming)) {
	w.Helper()
	_, err := w.b.ReadBack(w.ctx(), []broker.Position{{Stream: tidemill.StreamClock}}, fn)
	w.must(err)
}

// Marks expire when no controller has run for long.
func TestMarksThatHaveExpired(t *testing.T) {
	t.Parallel()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "test.events"), kfake.SeedTopics(1, "test.clock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	w := open(t, strings.Join(kafka.ListenAddrs(), ","))
	s, last := hourly(config.MissedLast)
	k := w.controller(Options{}, s)
	w.active(k)
	w.close(k)
	end, err := w.b.Ends(w.ctx(), tidemill.StreamClock)
	w.must(err)
	w.must(kafka.DeleteRecords("test.clock", 0, end[0].Offset))
	k = w.controller(Options{}, s)
	w.poll("what may have been missed is made up for", func() bool { return len(w.committedEvents()) == 3 })
	for name, n := range w.firings() {
		if n != 1 || !strings.HasPrefix(name, stamp(last)) {
			t.Errorf("%s is there %d times", name, n)
		}
	}
	w.close(k)
	k = w.controller(Options{}, s) // a further start does not repeat the tick
	w.active(k)
	if n := len(w.committedEvents()); n != 3 {
		t.Errorf("%d ticks", n)
	}
}

// If the stream was deleted and created again, the group's offset does not fit it.
func TestMarksOfAnotherStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x, err := w.b.Exclusive(w.ctx(), reader, broker.ProducerOptions{})
	w.must(err)
	w.must(x.Do(w.ctx(), func(tx *broker.ExclusiveTx) error {
		tx.Mark(reader, broker.Position{Stream: tidemill.StreamClock, Offset: 1000})
		return nil
	}))
	w.must(x.Close(w.ctx()))
	s, last := hourly(config.MissedAll)
	w.write(mark{Turn: "t", At: last, Full: true, States: map[string]state{"s": begun(&s, last.Add(-time.Minute))}})
	w.controller(Options{}, s)
	w.poll("what the marks tell is made up for", func() bool { return len(w.committedEvents()) == 3 })
}

// The controller retries while Kafka refuses its requests.
func TestKafkaIsAway(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	away := true
	w := newWorld(t)
	k, err := newController(Options{Broker: w.b, Names: names(t), Config: &config.Config{Schedules: []config.Schedule{everySecond()}}, Lease: 100 * time.Millisecond})
	w.must(err)
	toKafka := k.open
	k.open = func(ctx context.Context) (*tickWriter, error) {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return nil, errors.New("connection refused")
		}
		return toKafka(ctx)
	}
	k.start()
	w.poll("it says why it cannot", func() bool { return k.Status().Err != nil })
	mu.Lock()
	away = false
	mu.Unlock()
	w.active(k)
	w.poll("it ticks", func() bool { return len(w.committedEvents()) > 0 })
	w.close(k)
}

// A page of a mark fits into an event, whatever characters the keys have: a publisher chooses them.
func TestMarksOfLongKeys(t *testing.T) {
	t.Parallel()
	var ticks []tick
	for n := range part {
		ticks = append(ticks, tick{Schedule: "s", Key: fmt.Sprintf("%04d%s", n, strings.Repeat("<", 252)), Scheduled: time.Unix(0, 0)})
	}
	m := mark{Turn: "t", Sent: toBatches(ticks)}
	const most = 1<<20 - 1024 // limit of the producer
	for n, page := range m.pages() {
		v, err := page.view(names(t), n)
		if err != nil || len(v.Data) > most*3/4 {
			t.Errorf("page %d has %d bytes, of %d: %v", n, len(v.Data), most, err)
		}
	}
}
