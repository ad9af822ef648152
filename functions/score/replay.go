package score

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/deadletters"
)

// Replaying says which dead letters of a scorer are replayed.
type Replaying struct {
	Broker  *broker.Broker
	Names   tidemill.Names
	Config  config.Scorer
	Models  *serving.Models
	Letters []deadletters.Entry // in the order of their events
	By      string              // person who asked for it
}

// Replayed is the result of a replay. A dead letter in neither list is left for another call.
type Replayed struct {
	Letters []string          // ids of the dead letters that are resolved now
	Failed  map[string]string // reasons why others cannot be scored yet, by id
}

// Replay scores the events of dead letters and writes each answer once, to the scorer's own output.
// An answer and the receipt of its dead letter are one transaction. Answers to one key are in the
// order of its events. A dead letter whose event still cannot be scored stays open.
//
// Only one process replays a scorer's dead letters at a time: a second one takes over from the first.
func Replay(ctx context.Context, o Replaying) (done Replayed, err error) {
	r, err := newReplay(ctx, o)
	if err == nil {
		err = errors.Join(r.run(ctx), r.x.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return r.result, fmt.Errorf("replay dead letters of scorer %s: %w", o.Config.Name, err)
	}
	return r.result, nil
}

func newReplay(ctx context.Context, o Replaying) (r *replay, err error) {
	r = &replay{Replaying: o, result: Replayed{Failed: map[string]string{}}, answered: map[int32]*earlierOutputs{},
		rescore: rescore{Rescoring: Rescoring{Config: o.Config, Models: o.Models, Version: VersionChampion},
			place: newKeyPlace(o.Config.Key, o.Config.Model), cache: newCache(o.Config.Model, mostKeys), plans: plans{fields: fieldsOf(&o.Config)},
			workers: newWorkers(o.Config.Top)}}
	r.out, r.batch = newOutputs(r.source(), o.Config.Labels), &batch{arenas: make([][]byte, len(r.workers))}
	r.x, err = o.Broker.Exclusive(ctx, r.name(), broker.ProducerOptions{AsRead: true, MaxEvent: deadletters.MaxBytes})
	return r, err
}

// replay is a replay under way. It computes answers as a rescoring does.
type replay struct {
	Replaying
	rescore
	partitions int32 // number of the output's partitions
	open       []*openLetter
	answered   map[int32]*earlierOutputs // outputs of an interrupted replay, by partition of the input
	result     Replayed
}

// openLetter is a dead letter without a receipt.
type openLetter struct {
	deadletters.Entry
	view     broker.View // the dead letter
	original broker.View // its event
}

// name is the name of the replay's transactions, and of the group that stores where the outputs of an
// interrupted replay begin.
func (r *replay) name() string { return "replay." + r.Config.Name }

// replayChunk is the number of dead letters in one transaction.
const replayChunk = 500

func (r *replay) run(ctx context.Context) error {
	if err := r.readLetters(ctx); err != nil {
		return err
	}
	began, err := r.findAnswered(ctx)
	if err != nil {
		return err
	}
	for chunk := range slices.Chunk(r.open, replayChunk) {
		for len(chunk) > 0 {
			answered, rest, err := r.scoreLetters(ctx, chunk)
			if err == nil && len(answered) > 0 {
				err = r.commitLetters(ctx, answered)
			}
			if err != nil {
				return err
			}
			for _, l := range answered {
				r.result.Letters = append(r.result.Letters, l.ID)
			}
			chunk = rest
		}
	}
	return r.note(ctx, began, "")
}

// source is the source of the scorer's outputs.
func (r *replay) source() string {
	return r.Names.Source("scorer/" + r.Config.Name)
}

// replayBytes bounds the dead letters in memory. The others are left for another call.
const replayBytes = 64 << 20

// readLetters reads the dead letters, and their receipts that are on the log already. It is called
// after this process has taken the name, so a former holder writes no further receipt.
func (r *replay) readLetters(ctx context.Context) error {
	wanted := make(map[string]*openLetter, len(r.Letters))
	var from []broker.Position
	for _, e := range r.Letters {
		wanted[e.ID] = &openLetter{Entry: e}
		i := slices.IndexFunc(from, func(p broker.Position) bool { return p.Partition == e.At.Partition })
		if i < 0 {
			from = append(from, e.At)
		} else {
			from[i].Offset = min(from[i].Offset, e.At.Offset)
		}
	}
	bytes := 0
	_, err := r.Broker.ReadBack(ctx, from, func(e *broker.Incoming) {
		switch receipt, err := deadletters.ReadReceipt(&e.View); {
		case err == nil:
			delete(wanted, receipt.Letter)
		case wanted[e.ID] != nil && bytes < replayBytes:
			wanted[e.ID].view = e.View.Clone()
			bytes += len(e.Data)
		}
	})
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	for _, e := range r.Letters {
		if l := wanted[e.ID]; l != nil && l.view.ID != "" {
			r.keep(l)
		}
	}
	return nil
}

// keep keeps a dead letter whose event can be read and is one of the scorer's.
func (r *replay) keep(l *openLetter) {
	letter, err := deadletters.Read(&l.view)
	if err == nil {
		l.original, err = letter.Original()
	}
	if from := r.Config.From; err == nil && l.Source.Stream != from {
		err = fmt.Errorf("its event is from stream %s, and the scorer reads %s", l.Source.Stream, from)
	}
	if err != nil {
		r.result.Failed[l.ID] = err.Error()
		return
	}
	r.open = append(r.open, l)
}

// The notes next to the positions of a replay.
const noteUnderWay = "under way"

// findAnswered finds outputs of a replay that was interrupted. On a real Kafka there are none
// without receipts, but the laptop's broker can keep an output and lose the receipt of the same
// transaction. It returns the positions from which this replay's outputs have to be looked for.
func (r *replay) findAnswered(ctx context.Context) ([]broker.Position, error) {
	b, to := r.Broker, r.Config.To
	ends, err := b.Ends(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", to, err)
	}
	r.partitions = int32(len(ends))
	noted, err := b.Committed(ctx, r.name(), slices.Clone(ends))
	if err != nil {
		return nil, fmt.Errorf("find how far the last replay has come: %w", err)
	}
	var from []broker.Position
	for _, p := range noted {
		if p.Offset >= 0 && p.Note == noteUnderWay {
			from = append(from, p)
		}
	}
	for _, l := range r.open {
		if p := l.Source.Partition; r.answered[p] == nil {
			r.answered[p] = newEarlierOutputs(newAssignment(l.Source.Stream, p, 0).prefix)
		}
	}
	if len(from) == 0 {
		return ends, r.note(ctx, ends, noteUnderWay)
	}
	_, err = b.ReadBack(ctx, from, func(e *broker.Incoming) {
		for _, f := range r.answered {
			f.add(r.source(), &e.View)
		}
	})
	return from, err // the note stays where the interrupted replay has put it
}

// note stores where the outputs of this replay begin, or that it has ended.
func (r *replay) note(ctx context.Context, at []broker.Position, note string) error {
	return r.x.Do(ctx, func(tx *broker.ExclusiveTx) error {
		for _, p := range at {
			p.Note = note
			tx.Mark(r.name(), p)
		}
		return nil
	})
}

// scoreLetters computes the answers to some dead letters. It returns the dead letters that have an
// answer, in the batch or from an interrupted replay, and the rest, for whose answers the batch has no room.
func (r *replay) scoreLetters(ctx context.Context, chunk []*openLetter) (answered, rest []*openLetter, err error) {
	b := r.batch
	b.reset(b.seq + 1)
	b.stamp = time.Now().UTC().AppendFormat(b.stamp[:0], time.RFC3339Nano)
	var asked []*openLetter
	for _, l := range chunk {
		if r.answered[l.Source.Partition].hasOutput(&l.original, l.Source.Offset) {
			answered = append(answered, l)
			continue
		}
		t := newAssignment(l.Source.Stream, l.Source.Partition, l.Source.Partition%r.partitions)
		r.add(b, item{v: &l.original, offset: l.Source.Offset, delivery: &inFlight{of: t}})
		asked = append(asked, l)
	}
	b.sort()
	if err := r.resolve(ctx, b); err != nil {
		b.release()
		return nil, nil, err
	}
	if err := r.compute(ctx, b); err != nil {
		return nil, nil, err
	}
	if full := b.firstWithoutRoom(); full >= 0 {
		asked, rest, b.items = asked[:full], asked[full:], b.items[:full]
	}
	for i, l := range asked {
		if it := &b.items[i]; it.verdict == scored {
			answered = append(answered, l)
		} else {
			r.result.Failed[l.ID] = it.reason.Error()
		}
	}
	return answered, rest, nil
}

// commitLetters writes the answers of the batch, and the receipts of dead letters.
func (r *replay) commitLetters(ctx context.Context, answered []*openLetter) error {
	b, now := r.batch, time.Now()
	return r.x.Do(ctx, func(tx *broker.ExclusiveTx) error {
		for i := range b.items {
			if it := &b.items[i]; it.verdict == scored {
				tx.SendTo(ctx, r.Config.To, it.delivery.of.to, r.out.scored(b, it), nil)
			}
		}
		for _, l := range answered {
			v, err := deadletters.Resolved(r.Names, &l.view, deadletters.Receipt{Partition: l.At.Partition, Offset: l.At.Offset,
				Action: deadletters.Replayed, Outcome: deadletters.Delivered, By: r.By}, now)
			if err != nil {
				return err
			}
			tx.SendTo(ctx, l.At.Stream, l.At.Partition, &v, nil)
		}
		return nil
	})
}
