package schedule

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/config/cron"
)

// timetable is the schedules of a config.
type timetable struct {
	entries []*entry
	stream  string // stream of the ticks
}

func newTimetable(c *config.Config) (*timetable, error) {
	t := &timetable{stream: c.StreamFor(tidemill.TypeScheduleTick)}
	for _, s := range c.Schedules {
		e, err := newEntry(s)
		if err != nil {
			return nil, fmt.Errorf("read the schedules: %w", err)
		}
		t.entries = append(t.entries, e)
	}
	// Schedules with very many ticks come last, so that the others need not wait.
	slices.SortStableFunc(t.entries, func(a, b *entry) int {
		switch {
		case a.Each == b.Each:
			return 0
		case b.Each:
			return -1
		}
		return 1
	})
	return t, nil
}

// entry is a schedule with its slots.
type entry struct {
	config.Schedule
	expr  cron.Expr
	zone  *time.Location
	seats []slot // slots, for `each: key` set only while needed
	many  bool   // whether there are more keys than a list may have, so that the slots lack some
	more  bool   // whether a pass needs further keys after those of the slots

	// The last call of next and its answer. It is called for one slot after another, and
	// the answer is mostly the same.
	asked, answer time.Time
}

// slot is an offset in the spread, with the keys whose ticks have it.
type slot struct {
	offset time.Duration // time after the scheduled time
	keys   []string      // sorted; an empty key means no key
}

func newEntry(s config.Schedule) (*entry, error) {
	e := &entry{Schedule: s}
	var err error
	if e.expr, err = cron.Parse(s.Cron); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	if e.zone, err = time.LoadLocation(s.TimeZone); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	switch {
	case s.Each:
	case len(s.Keys) == 0:
		e.seats = []slot{{keys: []string{""}}}
	default:
		e.seats = slotsOf(s.Name, s.Keys, s.Spread)
	}
	return e, nil
}

// slotsOf gives sorted keys their slots, the last slot first.
func slotsOf(schedule string, keys []string, spread time.Duration) (all []slot) {
	places := map[time.Duration]int{}
	for _, key := range keys {
		at := offset(schedule, key, spread)
		i, known := places[at]
		if !known {
			i = len(all)
			places[at] = i
			all = append(all, slot{offset: at})
		}
		all[i].keys = append(all[i].keys, key)
	}
	slices.SortFunc(all, func(a, b slot) int { return cmp.Compare(b.offset, a.offset) })
	return all
}

// offsets iterates over the offsets of the slots. If the slots lack keys, any second of the spread may
// be one.
func (e *entry) offsets() iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for at := time.Duration(0); e.many && (at == 0 || at < e.Spread); at += time.Second {
			if !yield(at) {
				return
			}
		}
		for _, s := range e.seats {
			if !yield(s.offset) {
				return
			}
		}
	}
}

// size returns the number of ticks of a scheduled time.
func (e *entry) size() (n int) {
	if e.many {
		return maxRoll
	}
	for _, s := range e.seats {
		n += len(s.keys)
	}
	return n
}

// offset returns a whole number of seconds in [0, spread). It depends only on schedule
// and key, so other keys do not change it.
func offset(schedule, key string, spread time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(schedule + "\x00" + key))
	seconds, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:]), uint64(spread/time.Second))
	return time.Duration(seconds) * time.Second
}

// nextTime returns the first scheduled time after a time; zero if there is none.
func (e *entry) nextTime(after time.Time) time.Time {
	if after.Before(e.asked) || !after.Before(e.answer) {
		e.asked = after
		e.answer, _ = e.expr.Next(after, e.zone)
	}
	return e.answer
}

// timesBetween returns the first scheduled times in (after, until], oldest first, at most most
// of them.
func (e *entry) timesBetween(after, until time.Time, most int) (all []time.Time) {
	for len(all) < most {
		at := e.nextTime(after)
		if at.IsZero() || at.After(until) {
			break
		}
		all, after = append(all, at), at
	}
	return all
}

// newest returns the last scheduled times in (after, until]. It searches backwards in
// growing steps, so that a long outage does not cost a walk through all missed times.
func (e *entry) newest(after, until time.Time, most int) []time.Time {
	if most == 0 {
		return nil
	}
	for back := time.Minute; ; back *= 2 {
		from, whole := until.Add(-back), false
		if back >= until.Sub(after) {
			from, whole = after, true
		}
		all := e.timesBetween(from, until, int(back/time.Second)+1)
		if len(all) >= most || whole {
			return all[max(0, len(all)-most):]
		}
	}
}

// mostCounted bounds the count of missed times, because an exact larger count has no use.
const mostCounted = 10_000

// countTimes counts the scheduled times in (after, until].
func (e *entry) countTimes(after, until time.Time) (n int) {
	for ; n < mostCounted; n++ {
		if after = e.nextTime(after); after.IsZero() || after.After(until) {
			break
		}
	}
	return n
}

// Next returns the first scheduled time of a config's schedule after a time; false if
// there is none.
func Next(s *config.Schedule, after time.Time) (time.Time, bool) {
	alone := *s
	alone.Keys, alone.Each = nil, false // they do not affect the scheduled times
	e, err := newEntry(alone)
	if err != nil {
		return time.Time{}, false // cannot happen, because the config was checked
	}
	at := e.nextTime(after)
	return at, !at.IsZero()
}

// tick is one firing of a schedule for one key.
type tick struct {
	Schedule  string
	Key       string // empty means no key
	Scheduled time.Time
	Missed    int       // number of times skipped until then
	due       time.Time // time when it should be sent
}

// id depends only on the tick, so a repeated tick has the same id.
func (t *tick) id() string {
	return tidemill.ID(tidemill.TypeScheduleTick, t.Schedule, stamp(t.Scheduled), t.Key)
}

// view returns the tick's event.
func (t *tick) view(names tidemill.Names) broker.View {
	data, _ := json.Marshal(tickData{t.Scheduled.Format(time.RFC3339), t.Missed}) // a text and a number can always be encoded
	return broker.View{
		ID: t.id(), Source: source(names), Type: tidemill.TypeScheduleTick, Subject: t.Key,
		Time: stamp(t.Scheduled), DataSchema: tidemill.Schema(tidemill.TypeScheduleTick), DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: tidemill.AttrSchedule, Value: t.Schedule}},
		Data:       data,
	}
}

// tickData is the data of a tick. The time is in the schedule's time zone.
type tickData struct {
	Scheduled string `json:"scheduled"`
	Missed    int    `json:"missed"`
}

// source returns the source of ticks and marks.
func source(names tidemill.Names) string { return names.Source(reader) }

// reader is the controller's name in the source of its events, its transactional id,
// its group and its lease.
const reader = "controller"

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }
