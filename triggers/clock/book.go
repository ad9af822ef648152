package clock

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemill.dev/broker"
)

// Book is the fold of the marks: how far every schedule has come.
type Book struct {
	states map[string]state
	whole  bool    // a full mark has been read, so that no state is missing
	gaps   []error // marks that could not be read, most likely because they had been deleted

	turn string  // the newest transaction
	sent []batch // what it sent
	ends []place // where the ticks' stream ended before it
}

// Last is the scheduled time of a schedule's newest tick; false if it had none
// yet.
func (b *Book) Last(schedule string) (time.Time, bool) {
	at := b.states[schedule].Last
	return at, !at.IsZero()
}

// lost tells whether a schedule without a state may have had one.
func (b *Book) lost() bool { return len(b.gaps) > 0 && !b.whole }

// read takes in the data of a mark's page.
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

// ticks are those of the newest transaction.
func (b *Book) ticks() (all []tick) {
	for i := range b.sent {
		all = slices.AppendSeq(all, slices.Values(b.sent[i].ticks()))
	}
	return all
}

// began is where a partition ended before the newest transaction. One that was
// added since had not begun.
func (b *Book) began(partition broker.Position) broker.Position {
	partition.Offset = 0
	for _, e := range b.ends {
		if e.Partition == partition.Partition && e.Stream == partition.Stream {
			partition.Offset = e.Offset
		}
	}
	return partition
}
