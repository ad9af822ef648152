package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// memory replaces the two streams in tests with virtual time, because a synctest bubble
// cannot wait for the sockets of Kafka. Marks are encoded and decoded as on Kafka.
type memory struct {
	t *testing.T

	mu    sync.Mutex
	away  error
	holds int // number of the newest holder of the name
	marks [][]byte
	full  int // index of the newest full mark
	ticks []sentTick
}

type sentTick struct {
	tick
	at time.Time
}

func (m *memory) open(context.Context) (*tickWriter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return nil, m.away
	}
	m.holds++
	me := m.holds
	return &tickWriter{
		read: m.read,
		seen: func(_ context.Context, b *Book) (map[string]bool, error) {
			ids := map[string]bool{}
			for _, t := range b.ticks() {
				ids[t.id()] = true
			}
			return ids, nil
		},
		write: func(_ context.Context, _ string, ticks []tick, mark mark) error { return m.write(me, ticks, mark) },
		close: func() {},
	}, nil
}

func (m *memory) read(context.Context) (*Book, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := &Book{}
	for _, data := range m.marks[m.full:] {
		if err := b.read(data); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (m *memory) write(me int, ticks []tick, of mark) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away != nil:
		return m.away
	case me != m.holds:
		return broker.ErrSuperseded
	}
	of.Turn, of.Sent = stamp(of.At)+string(rune('a'+len(m.marks))), toBatches(ticks)
	if of.Full {
		m.full = len(m.marks)
	}
	for _, page := range of.pages() {
		data, err := json.Marshal(page)
		if err != nil {
			return err
		}
		m.marks = append(m.marks, data)
	}
	for _, t := range ticks {
		m.ticks = append(m.ticks, sentTick{t, time.Now()})
	}
	return nil
}

func (m *memory) is(away error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

// sent shows the ticks sent since the last call, with their times.
func (m *memory) sent() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, t := range m.ticks {
		all = append(all, t.Scheduled.Format("15:04Z0700")+"@"+t.at.UTC().Format("15:04:05"))
	}
	m.ticks = nil
	return strings.Join(all, " ")
}

// controller starts a controller on memory. The bubble's time begins with the year 2000.
func (m *memory) controller(o Options, schedules ...config.Schedule) *Controller {
	m.t.Helper()
	o.Names, o.Config = names(m.t), &config.Config{Schedules: schedules}
	k, err := newController(o)
	if err != nil {
		m.t.Fatal(err)
	}
	k.open = m.open
	k.start()
	return k
}

func names(t *testing.T) tidemill.Names {
	t.Helper()
	n, err := tidemill.NewNames("test")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func shut(t *testing.T, k *Controller) {
	t.Helper()
	if err := k.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// sleepUntil sleeps until a time.
func sleepUntil(t *testing.T, text string) {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Until(at))
	synctest.Wait()
}

func expect(t *testing.T, m *memory, want string) {
	t.Helper()
	if got := m.sent(); got != want {
		t.Errorf("at %s %q was sent, want %q", time.Now().UTC().Format(time.RFC3339), got, want)
	}
}

func TestClocksThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		s := config.Schedule{Name: "s", Cron: "30 2 * * *", TimeZone: "America/New_York", Missed: config.MissedSkip}
		sleepUntil(t, "2000-04-02T00:00:00Z") // clocks are set forward at 07:00 UTC
		k := m.controller(Options{}, s)
		sleepUntil(t, "2000-04-04T00:00:00Z")
		shut(t, k)
		expect(t, m, "03:00-0400@07:00:00 02:30-0400@06:30:00")
		sleepUntil(t, "2000-10-29T00:00:00Z") // clocks are set back at 06:00 UTC, from 2:00 to 1:00
		k = m.controller(Options{}, s)
		sleepUntil(t, "2000-10-31T00:00:00Z")
		shut(t, k)
		expect(t, m, "02:30-0500@07:30:00 02:30-0500@07:30:00")
		book, err := m.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last, ok := book.Last("s"); !ok || stamp(last) != "2000-10-30T07:30:00Z" {
			t.Errorf("last %s %v", last, ok)
		}
	})
}

func TestTenMinutesWithoutKafka(t *testing.T) {
	for missed, want := range map[config.Missed]string{
		config.MissedSkip: "", config.MissedLast: "00:14Z@", config.MissedAll: "00:06Z@ 00:08Z@ 00:10Z@ 00:12Z@ 00:14Z@"} {
		synctest.Test(t, func(t *testing.T) {
			m := &memory{t: t}
			k := m.controller(Options{}, config.Schedule{Name: "s", Cron: "*/2 * * * *", TimeZone: "UTC", Missed: missed})
			defer shut(t, k)
			sleepUntil(t, "2000-01-01T00:05:30Z")
			expect(t, m, "00:02Z@00:02:00 00:04Z@00:04:00")
			m.is(errors.New("Kafka is away"))
			sleepUntil(t, "2000-01-01T00:15:15Z")
			if s := k.Status(); s.Active || s.Err == nil {
				t.Errorf("while Kafka is away: %+v", s)
			}
			m.is(nil)
			sleepUntil(t, "2000-01-01T00:15:59Z")
			got := m.sent()
			for _, w := range strings.Fields(want) {
				before, after, ok := strings.Cut(got, w)
				if !ok || strings.TrimSpace(before) != "" {
					t.Errorf("%s: then %q was sent, want %q", missed, got, want)
				}
				got = after[len("00:00:00"):]
			}
			if got != "" {
				t.Errorf("%s: and then %q", missed, got)
			}
			sleepUntil(t, "2000-01-01T00:16:30Z")
			expect(t, m, "00:16Z@00:16:00")
		})
	}
}

func TestAControllerThatComesBackLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		s := config.Schedule{Name: "s", Cron: "0 * * * *", TimeZone: "UTC", Missed: config.MissedAll}
		k := m.controller(Options{}, s)
		sleepUntil(t, "2000-01-01T01:30:00Z")
		shut(t, k)
		sleepUntil(t, "2000-01-01T04:30:00Z")
		expect(t, m, "01:00Z@01:00:00")
		k = m.controller(Options{}, s)
		defer shut(t, k)
		sleepUntil(t, "2000-01-01T05:30:00Z")
		expect(t, m, "02:00Z@04:30:00 03:00Z@04:30:00 04:00Z@04:30:00 05:00Z@05:00:00")
	})
}

// The marks are from a clock that was a day ahead, or this clock was set back. Nothing ticks until it has caught up,
// and the log says so once.
func TestAClockBehindTheMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		s := config.Schedule{Name: "s", Cron: "0 * * * *", TimeZone: "UTC", Missed: config.MissedSkip}
		ahead := time.Now().Add(24 * time.Hour)
		if err := m.write(0, nil, mark{At: ahead, States: map[string]state{"s": begun(&s, ahead)}, Full: true}); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		k := m.controller(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, s)
		sleepUntil(t, "2000-01-02T01:30:00Z")
		shut(t, k)
		expect(t, m, "01:00Z@01:00:00")
		if n := strings.Count(log.String(), "earlier time than the marks"); n != 1 {
			t.Errorf("%d warnings: %s", n, log.String())
		}
	})
}

func TestConfigAndPauseApplyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		paused, changed := false, make(chan struct{})
		pause := func(is bool) {
			mu.Lock()
			defer mu.Unlock()
			paused = is
			close(changed)
			changed = make(chan struct{})
		}
		m := &memory{t: t}
		k := m.controller(Options{
			Paused:  func(string) bool { mu.Lock(); defer mu.Unlock(); return paused },
			Changed: func() <-chan struct{} { mu.Lock(); defer mu.Unlock(); return changed },
		}, config.Schedule{Name: "s", Cron: "0 0 1 1 *", TimeZone: "UTC", Missed: config.MissedLast})
		defer shut(t, k)
		sleepUntil(t, "2000-01-01T00:00:10Z")
		if err := k.Apply(&config.Config{Schedules: []config.Schedule{{Name: "s", Cron: "* * * * * *", TimeZone: "UTC", Missed: config.MissedLast}}}); err != nil {
			t.Fatal(err)
		}
		sleepUntil(t, "2000-01-01T00:00:12Z")
		expect(t, m, "00:00Z@00:00:11 00:00Z@00:00:12")
		pause(true)
		sleepUntil(t, "2000-01-01T00:10:00Z")
		expect(t, m, "")
		pause(false)
		synctest.Wait()
		if n := strings.Count(m.sent(), "@00:10:00"); n != 62 { // ticks of the last minute, and the newest one before
			t.Errorf("%d ticks at the end of the pause", n)
		}
		if err := k.Apply(&config.Config{Schedules: []config.Schedule{{Name: "s", Cron: "61 * * * *"}}}); err == nil {
			t.Error("a schedule that cannot be read applies")
		}
	})
}

// Two controllers that do not see each other take turns, less and less often, and
// together send every tick once.
func TestTwoControllersInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		s := config.Schedule{Name: "s", Cron: "*/10 * * * * *", TimeZone: "UTC", Missed: config.MissedAll}
		a := m.controller(Options{}, s)
		synctest.Wait()
		b := m.controller(Options{}, s)
		sleepUntil(t, "2000-01-01T06:00:05Z")
		shut(t, a)
		shut(t, b)
		count := map[string]int{}
		for _, tick := range m.ticks {
			count[tick.id()]++
			if late := tick.at.Sub(tick.Scheduled); late > 3*time.Minute {
				t.Errorf("%s came %s late", stamp(tick.Scheduled), late)
			}
		}
		if len(count) != 6*360 || len(m.ticks) != len(count) {
			t.Errorf("%d ticks, %d different, want %d", len(m.ticks), len(count), 6*360)
		}
		if m.holds > 1000 {
			t.Errorf("they took turns %d times in six hours", m.holds)
		}
		t.Logf("%d turns", m.holds)
	})
}

// A controller that starts after days reads a recent full mark.
func TestFullMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		k := m.controller(Options{}, config.Schedule{Name: "s", Cron: "0 0 1 1 *", TimeZone: "UTC", Missed: config.MissedLast})
		sleepUntil(t, "2000-01-02T00:30:00Z")
		shut(t, k)
		full := 0
		for _, data := range m.marks {
			var of mark
			if err := json.Unmarshal(data, &of); err != nil {
				t.Fatal(err)
			}
			if of.Full {
				full++
			}
		}
		if full != 5 || len(m.marks) != 6 { // the first mark was full because there was none; the sixth is for the new schedule
			t.Errorf("%d full marks of %d", full, len(m.marks))
		}
	})
}
