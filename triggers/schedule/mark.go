package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
)

// mark is the state that one transaction writes to the stream clock. It is split into
// pages, because an event has a size limit. The pages of a transaction follow each
// other, and all or none of them can be read.
type mark struct {
	Turn string    `json:"turn"` // name of the transaction
	At   time.Time `json:"at"`
	// Full means that no earlier mark is needed.
	Full   bool             `json:"full,omitempty"`
	States map[string]state `json:"schedules,omitempty"`
	Gone   []string         `json:"gone,omitempty"`
	// Sent and Ends are for the next controller: the ticks of the transaction, and the
	// end of their stream when it began.
	Sent []batch `json:"sent,omitempty"`
	Ends []place `json:"ends,omitempty"`
}

// batch is a set of ticks that differ only by their keys.
type batch struct {
	Schedule  string    `json:"schedule"`
	Scheduled time.Time `json:"scheduled"`
	Missed    int       `json:"missed,omitempty"`
	Keys      []string  `json:"keys"`
}

type place struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// A page stays far below an event's limit of a megabyte: keys have at most 256 bytes,
// which JSON at most doubles, and states some hundred.
const (
	pageTicks  = 1000
	pageStates = 500
)

// pages splits a mark into pages.
func (m *mark) pages() []mark {
	pages := []mark{{Full: m.Full, Gone: m.Gone, Ends: m.Ends}}
	names := slices.Sorted(maps.Keys(m.States))
	for chunk := range slices.Chunk(names, pageStates) {
		page := mark{States: map[string]state{}}
		for _, name := range chunk {
			page.States[name] = m.States[name]
		}
		pages = append(pages, page)
	}
	for _, b := range m.Sent {
		for keys := range slices.Chunk(b.Keys, pageTicks) {
			b.Keys = keys
			pages = append(pages, mark{Sent: []batch{b}})
		}
	}
	pages = joined(pages)
	for i := range pages {
		pages[i].Turn, pages[i].At = m.Turn, m.At
	}
	return pages
}

// joined joins neighbouring pages that fit on one.
func joined(pages []mark) []mark {
	all := pages[:1]
	for _, next := range pages[1:] {
		last := &all[len(all)-1]
		if last.size()+next.size() > pageTicks || len(last.States)+len(next.States) > pageStates {
			all = append(all, next)
			continue
		}
		if last.States == nil {
			last.States = next.States
		} else {
			maps.Copy(last.States, next.States)
		}
		last.Sent = append(last.Sent, next.Sent...)
	}
	return all
}

func (m *mark) size() (n int) {
	for _, b := range m.Sent {
		n += len(b.Keys)
	}
	return n + len(m.States)
}

// toBatches groups ticks into the batches of a mark.
func toBatches(ticks []tick) (all []batch) {
	for i := range ticks {
		t := &ticks[i]
		if n := len(all) - 1; n >= 0 && all[n].Schedule == t.Schedule && all[n].Scheduled.Equal(t.Scheduled) && all[n].Missed == t.Missed {
			all[n].Keys = append(all[n].Keys, t.Key)
			continue
		}
		all = append(all, batch{t.Schedule, t.Scheduled, t.Missed, []string{t.Key}})
	}
	return all
}

// ticks returns the ticks of a batch.
func (b *batch) ticks() (all []tick) {
	for _, key := range b.Keys {
		all = append(all, tick{Schedule: b.Schedule, Key: key, Scheduled: b.Scheduled, Missed: b.Missed, due: b.Scheduled})
	}
	return all
}

// view returns a page's event.
func (m *mark) view(names tidemill.Names, page int) (broker.View, error) {
	var data bytes.Buffer
	e := json.NewEncoder(&data)
	e.SetEscapeHTML(false) // otherwise a < in a key takes six bytes, and a page may be too large for an event
	if err := e.Encode(m); err != nil {
		return broker.View{}, fmt.Errorf("write down how far the schedules have come: %w", err)
	}
	return broker.View{
		ID: tidemill.ID(tidemill.TypeClockMarked, m.Turn, fmt.Sprint(page)), Source: source(names), Type: tidemill.TypeClockMarked,
		Time: m.At.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeClockMarked), DataContentType: "application/json",
		Data: data.Bytes(),
	}, nil
}

// state is the progress of a schedule.
type state struct {
	// These fields are the schedule's definition. A schedule with another definition
	// begins again.
	Cron     string        `json:"cron"`
	TimeZone string        `json:"timeZone"`
	Spread   time.Duration `json:"spread,omitempty"`

	From    time.Time `json:"from"`              // scheduled times up to it do not belong to the schedule
	Through time.Time `json:"through"`           // ticks that were due up to it are handled
	Last    time.Time `json:"last,omitzero"`     // scheduled time of the newest tick
	Skipped []span    `json:"skipped,omitempty"` // handled times without a tick
	Pass    *pass     `json:"pass,omitempty"`    // pass under way
}

// span is a time in which due ticks were not sent.
type span struct {
	After   time.Time `json:"after"`
	Through time.Time `json:"through"`
}

// mostSpans bounds a mark. A schedule that is stopped for longer reports this many
// outages in a row.
const mostSpans = 32

// begun returns the state of a schedule whose first tick comes after a time.
func begun(s *config.Schedule, at time.Time) state {
	return state{Cron: s.Cron, TimeZone: s.TimeZone, Spread: s.Spread, From: at, Through: at}
}

// belongsTo reports whether the state belongs to the schedule's present definition.
func (s *state) belongsTo(now *config.Schedule) bool {
	return s.Cron == now.Cron && s.TimeZone == now.TimeZone && s.Spread == now.Spread
}

// former returns the schedule as it was when the state was written.
func (s *state) former(now config.Schedule) (*entry, error) {
	now.Cron, now.TimeZone, now.Spread = s.Cron, s.TimeZone, s.Spread
	return newEntry(now)
}

// oweFrom returns a time right before the first unhandled scheduled time of a slot.
func (s *state) oweFrom(offset time.Duration) time.Time {
	return later(s.From, s.Through.Add(-offset))
}

// skip records that the ticks due in a span were not sent.
func (s *state) skip(after, through time.Time) {
	s.Skipped = append(slices.Clone(s.Skipped), span{after, through})
	s.Skipped = s.Skipped[max(0, len(s.Skipped)-mostSpans):]
}

// adjacent returns how many of the newest spans are right before a scheduled time, with
// no tick sent between.
func (s *state) adjacent(e *entry, offset time.Duration, scheduled time.Time) (n int) {
	for _, gap := range slices.Backward(s.Skipped) {
		if !e.nextTime(later(s.From, gap.Through.Add(-offset))).Equal(scheduled) {
			break
		}
		n++
		scheduled = e.nextTime(later(s.From, gap.After.Add(-offset)))
	}
	return n
}

// skippedBefore counts the skipped times that directly precede a scheduled time.
func (s *state) skippedBefore(e *entry, offset time.Duration, scheduled time.Time) (n int) {
	for _, gap := range s.Skipped[len(s.Skipped)-s.adjacent(e, offset, scheduled):] {
		n += e.countTimes(later(s.From, gap.After.Add(-offset)), gap.Through.Add(-offset))
	}
	return min(n, mostCounted)
}

// dropCounted drops spans that no later tick will count.
func (s *state) dropCounted(e *entry) {
	keep := 0
	for at := range e.offsets() {
		if keep == len(s.Skipped) {
			break
		}
		keep = max(keep, s.adjacent(e, at, e.nextTime(s.oweFrom(at))))
	}
	s.Skipped = slices.Clone(s.Skipped[len(s.Skipped)-keep:])
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Book is the state of all schedules, folded from the marks.
type Book struct {
	states map[string]state
	whole  bool    // a full mark has been read, so that no state is missing
	gaps   []error // marks that could not be read, most likely because they were deleted

	turn string  // name of the newest transaction
	sent []batch // ticks of the newest transaction
	ends []place // end of the ticks' stream when the newest transaction began
}

// Last returns the scheduled time of a schedule's newest tick; false if there is none
// yet.
func (b *Book) Last(schedule string) (time.Time, bool) {
	at := b.states[schedule].Last
	return at, !at.IsZero()
}

// maybeLost reports whether a schedule without a state may have had one.
func (b *Book) maybeLost() bool { return len(b.gaps) > 0 && !b.whole }

// read folds the data of a mark's page.
func (b *Book) read(data []byte) error {
	var m mark
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("read a mark of the schedules: %w", err)
	}
	b.apply(m)
	return nil
}

func (b *Book) apply(m mark) {
	if m.Turn != b.turn {
		b.turn, b.sent, b.ends = m.Turn, nil, nil
	}
	if m.Full {
		b.states, b.whole = nil, true
	}
	if b.states == nil {
		b.states = map[string]state{}
	}
	maps.Copy(b.states, m.States)
	for _, name := range m.Gone {
		delete(b.states, name)
	}
	b.sent = append(b.sent, m.Sent...)
	b.ends = append(b.ends, m.Ends...)
}

// ticks returns the ticks of the newest transaction.
func (b *Book) ticks() (all []tick) {
	for i := range b.sent {
		all = slices.AppendSeq(all, slices.Values(b.sent[i].ticks()))
	}
	return all
}

// beginOf returns where a partition ended when the newest transaction began. A partition
// added since then was empty.
func (b *Book) beginOf(partition broker.Position) broker.Position {
	partition.Offset = 0
	for _, e := range b.ends {
		if e.Partition == partition.Partition && e.Stream == partition.Stream {
			partition.Offset = e.Offset
		}
	}
	return partition
}

// Read reads the state of all schedules from the newest full mark on.
func Read(ctx context.Context, b *broker.Broker) (*Book, error) {
	at, err := b.Committed(ctx, reader, []broker.Position{{Stream: tidemill.StreamClock}})
	if err != nil {
		return nil, fmt.Errorf("find the newest full mark of the schedules: %w", err)
	}
	from := max(0, at[0].Offset)
	book, err := readFrom(ctx, b, from)
	if err == nil && !book.whole && from > 0 {
		// The offset belongs to an earlier stream of this name, or was deleted.
		return readFrom(ctx, b, 0)
	}
	return book, err
}

func readFrom(ctx context.Context, b *broker.Broker, offset int64) (book *Book, err error) {
	r, err := follow.OpenReader(ctx, b, follow.ReaderOptions{Stream: tidemill.StreamClock, Resume: follow.Place{offset}, ToEnd: true})
	if err != nil {
		return nil, fmt.Errorf("read how far the schedules have come: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	book = &Book{}
	for {
		events, err := r.Next(ctx)
		if err == io.EOF {
			return book, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read how far the schedules have come: %w", err)
		}
		for i := range events {
			book.foldRecord(&events[i])
		}
	}
}

// foldRecord folds one record of the stream.
func (b *Book) foldRecord(e *follow.Event) {
	err := e.Err
	if err == nil && e.Type == tidemill.TypeClockMarked {
		err = b.read(e.Data)
	}
	if err != nil {
		b.gaps = append(b.gaps, fmt.Errorf("offset %d: %w", e.Offset, err))
	}
}
