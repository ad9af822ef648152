package ledger

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// own are facts that this process has put on the log and waits for. Kafka has told
// where they lie: if that is the very next place of their partition, nothing can
// come between, and they can be folded without being read back first. In a busy
// cluster that wait is the longer half of putting a fact on the log, for all who
// follow the facts are told of one at once.
//
// It is a shortcut and nothing else. A fact that lies further on, behind others'
// facts, behind the marker of a transaction or in a transaction that is open, is
// left to be read; and one that is read again has been applied.
type own struct {
	mu    sync.Mutex
	facts []tidemill.Fact
}

func (o *own) add(f tidemill.Fact) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.facts = append(o.facts, f)
}

func (o *own) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.facts) > 0
}

func (o *own) take() []tidemill.Fact {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.facts
	o.facts = nil
	return all
}

// offer has a fact folded that Kafka has said where it put it. Only what the log
// gives back as it was given will do: a fact that has no time of its own gets
// Kafka's.
func (l *Ledger) offer(v *broker.View, at broker.Position) {
	if when, err := time.Parse(time.RFC3339Nano, v.Time); err != nil || !believable(when) {
		return
	}
	e := broker.Incoming{View: *v, Offset: at.Offset}
	if f, kind := read(&e, at.Partition); kind == legible {
		l.own.add(f)
		l.doubt.nudge()
	}
}

// takeOwn takes those facts in that lie right behind what the batch has, or behind
// what has been folded.
func (l *Ledger) takeOwn(b *batch) {
	all := l.own.take()
	slices.SortFunc(all, func(a, b tidemill.Fact) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, f := range all {
		p, next := b.parts[f.Partition], l.upTo(f.Partition)
		if p != nil {
			next = max(next, p.next)
		}
		if f.Offset != next {
			continue
		}
		if p == nil {
			p = &part{partition: f.Partition, from: next}
			b.parts[f.Partition] = p
		}
		p.facts, p.next = append(p.facts, f), f.Offset+1
		b.facts++
		b.bytes += len(f.Data)
	}
}
