package deliver

import (
	"context"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// lettersBytes is what is read of the dead letters at once.
const lettersBytes = 1 << 20

// asking is an act that asks to replay dead letters, as far as it concerns one
// stream.
type asking struct {
	act tidemill.LetterReplay
	of  map[int32][]askedLetter // by the partition that their events came from, in the act's order
}

type askedLetter struct {
	tidemill.LetterRef
	index int  // in the act
	over  bool // it had its receipt when the act was read
}

// readAsking reads an act, and which of its letters are resolved already: a
// partition that has forgotten how far it had come begins anew, and another act
// may have named the same letters.
func (l *lane) readAsking(ctx context.Context, act tidemill.LetterReplay) (*asking, error) {
	refs, err := l.d.acts.Letters(ctx, act)
	if err != nil {
		return nil, err
	}
	ends, err := l.d.o.Broker.Ends(ctx, tidemill.StreamDeadLetters)
	if err != nil {
		return nil, err
	}
	a := &asking{act: act, of: map[int32][]askedLetter{}}
	first := map[int32]int64{} // of the dead letters' partitions
	for n, r := range refs {
		if r.Stream != l.stream.Name {
			continue
		}
		one := askedLetter{LetterRef: r, index: n}
		if r.Offset >= endOf(ends, broker.Position{Partition: r.Partition}) {
			l.absent(&one, "the log ends before it")
			one.over = true
		} else if at, known := first[r.Partition]; !known || r.Offset < at {
			first[r.Partition] = r.Offset
		}
		a.of[r.Source] = append(a.of[r.Source], one)
	}
	over := map[string]bool{}
	for partition, offset := range first {
		if err := l.receipts(ctx, broker.Position{Stream: tidemill.StreamDeadLetters, Partition: partition, Offset: offset}, over); err != nil {
			return nil, fmt.Errorf("find the receipts of act %s: %w", act.ID, err)
		}
	}
	for _, all := range a.of {
		for n := range all {
			all[n].over = all[n].over || over[all[n].ID]
		}
	}
	return a, nil
}

// receipts notes the letters that have a receipt from a place on.
func (l *lane) receipts(ctx context.Context, from broker.Position, over map[string]bool) error {
	for {
		next, err := l.d.o.Broker.Read(ctx, from, lettersBytes, func(in *broker.Incoming) bool {
			if in.Err == nil && in.Type == tidemill.TypeEventResolved {
				if r, err := letters.ReadReceipt(&in.View); err == nil {
					over[r.Letter] = true
				}
			}
			return true
		})
		if err != nil || next == from.Offset {
			return err
		}
		from.Offset = next
	}
}
