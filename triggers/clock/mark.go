package clock

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// mark is what one transaction leaves on the stream clock. It is written in
// pages, because an event has a limit; a transaction's pages lie one behind the
// other, and all of them or none can be read.
type mark struct {
	Turn string    `json:"turn"` // names the transaction
	At   time.Time `json:"at"`
	// Full says that whoever reads the mark needs none before it.
	Full   bool             `json:"full,omitempty"`
	States map[string]state `json:"schedules,omitempty"`
	Gone   []string         `json:"gone,omitempty"`
	// Sent and Ends are for who takes over: what the transaction sent, and where
	// the stream of ticks ended before.
	Sent []batch `json:"sent,omitempty"`
	Ends []place `json:"ends,omitempty"`
}

// batch is ticks that differ by their key alone.
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

// A page stays far below the megabyte that an event may have: keys have 255
// letters at most, and states some hundred.
const (
	pageTicks  = 1000
	pageStates = 500
)

// pages splits a mark.
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

// joined puts neighbours on one page where there is room for both.
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

// batches gathers ticks for a mark.
func batches(ticks []tick) (all []batch) {
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

// ticks are what was gathered.
func (b *batch) ticks() (all []tick) {
	for _, key := range b.Keys {
		all = append(all, tick{Schedule: b.Schedule, Key: key, Scheduled: b.Scheduled, Missed: b.Missed, due: b.Scheduled})
	}
	return all
}

// view is a page's event.
func (m *mark) view(names tidemill.Names, page int) (broker.View, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return broker.View{}, fmt.Errorf("write down how far the schedules have come: %w", err)
	}
	return broker.View{
		ID: tidemill.ID(tidemill.TypeClockMarked, m.Turn, fmt.Sprint(page)), Source: source(names), Type: tidemill.TypeClockMarked,
		Time: m.At.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeClockMarked), DataContentType: "application/json",
		Data: data,
	}, nil
}
