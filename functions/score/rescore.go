package score

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/champions"
	"tidemill.dev/internal/served"
	"tidemill.dev/triggers/letters"
)

// Rescoring says what is scored once more, by what, and where the answers go.
type Rescoring struct {
	Broker    *broker.Broker
	Names     tidemill.Names
	Config    config.Scorer
	Champions *champions.Table
	Models    *served.Models

	Ranges  []tidemill.Range // of the scorer's stream
	Version string           // of each model: a number, champion or previous
	Stream  string           // that the answers go to; it is not the scorer's own
	// Resume is the id of one that was cut off, which goes on as it was begun: the
	// three before it do not count then.
	Resume string
	// Told is told how far it is, now and then. An error from it ends it.
	Told func(Rescored) error
}

// Rescored is how far it is. The counts are of this part of it: where one was
// resumed, not of what was done before.
type Rescored struct {
	ID       string            `json:"id"`
	Records  int64             `json:"records"` // to be read in all
	Left     int64             `json:"left"`    // of them
	Scored   int64             `json:"scored"`
	Passed   int64             `json:"passed"`            // not events that the scorer scores
	Skipped  int64             `json:"skipped"`           // scored before it was cut off
	Unscored int64             `json:"unscored"`          // that no model could answer
	Reasons  map[string]string `json:"reasons,omitempty"` // why some of them were not, by position
}

const mostReasons = 5

// ErrRescore says that what is asked for cannot be done, or not any more.
var ErrRescore = errors.New("cannot be scored once more")

// Rescore scores a part of a scorer's stream once more, and has the answers on
// another stream, each once: answers and how far it has come are one transaction.
// What was cut off is resumed by its id, by whoever has it last. Nothing else
// hears of it: no offsets of the scorer move, and nothing becomes a dead letter.
func Rescore(ctx context.Context, o Rescoring) (done Rescored, err error) {
	r, err := planned(ctx, o)
	if err != nil {
		return Rescored{}, err
	}
	r.told.ID = r.id
	if r.x, err = o.Broker.Exclusive(ctx, rescoreName(r.id), broker.ProducerOptions{AsRead: true, MaxEvent: letters.MaxBytes}); err != nil {
		return r.told, fmt.Errorf("score %s once more: %w", o.Config.From, err)
	}
	defer func() { err = errors.Join(err, r.x.Close(context.WithoutCancel(ctx))) }()
	if err := r.run(ctx); err != nil {
		return r.told, fmt.Errorf("score %s once more, as %s: %w", o.Config.From, r.id, err)
	}
	return r.told, nil
}

// rescoreName names the transactions, and the group that keeps the places, of one.
func rescoreName(id string) string { return "rescore." + id }

// rescore is one that is under way.
type rescore struct {
	Rescoring
	id      string
	note    rescoreNote
	x       *broker.Exclusive
	to      int32 // partitions of the answers
	stretch []stretch
	told    Rescored
	done    map[int32]*found // answers of before it was cut off

	place   keyPlace
	cache   *cache
	plans   plans
	workers []*worker
	out     *outputs
	batch   *batch
}

// stretch is what is left of a partition.
type stretch struct {
	partition int32
	next, end int64
	answers   []int64 // as its note has them
}

func (r *rescore) run(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	for _, s := range r.stretch {
		r.told.Left += s.end - s.next
	}
	if r.Resume == "" {
		r.told.Records = r.told.Left
	}
	for r.told.Left > 0 {
		if err := r.round(ctx); err != nil {
			return err
		}
	}
	return nil
}

// round scores some of each partition, in turn: so the notes of all of them are
// young, and what has to be read back is little.
func (r *rescore) round(ctx context.Context) error {
	for i := range r.stretch {
		s := &r.stretch[i]
		if s.next == s.end {
			continue
		}
		if err := r.some(ctx, s); err != nil {
			return err
		}
		if err := r.Told(r.told); err != nil {
			return err
		}
	}
	return nil
}

// begin writes down what is to be done, or finds what has been.
func (r *rescore) begin(ctx context.Context) error {
	ends, err := r.Broker.Ends(ctx, r.Stream)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", r.Stream, err)
	}
	r.to = int32(len(ends))
	source := r.Names.Source("scorer/" + r.Config.Name + "/rescore/" + r.id)
	r.place, r.cache, r.plans = newKeyPlace(r.Config.Key, r.Config.Model), newCache(r.Config.Model, mostKeys), plans{fields: fieldsOf(&r.Config)}
	r.workers, r.out = newWorkers(r.Config.Top), newOutputs(source)
	r.batch = &batch{arenas: make([][]byte, len(r.workers))}
	if r.Resume == "" {
		return r.x.Do(ctx, func(tx *broker.ExclusiveTx) error {
			for _, s := range r.stretch {
				r.mark(tx, s)
			}
			return nil
		})
	}
	return r.findDone(ctx, source, ends)
}

// findDone reads the answers back that were sent before it was cut off: the
// laptop's broker can keep them and forget how far it had come.
func (r *rescore) findDone(ctx context.Context, source string, ends []broker.Position) error {
	r.done = map[int32]*found{}
	from := slices.Clone(ends)
	for _, s := range r.stretch {
		f := newFound(newTenure(r.Config.From, s.partition, 0).prefix)
		f.floor = s.next
		if s.next == s.end {
			continue
		}
		r.done[s.partition] = f
		for i := range from {
			from[i].Offset = min(from[i].Offset, s.answered(i))
		}
	}
	_, err := r.Broker.ReadBack(ctx, from, func(e *broker.Incoming) {
		for _, f := range r.done {
			f.add(source, &e.View)
		}
	})
	return err
}

// answered is where the answers of a partition of theirs lie that may have been
// sent behind the note.
func (s *stretch) answered(partition int) int64 {
	if partition < len(s.answers) {
		return s.answers[partition]
	}
	return 0
}

// mark keeps how far a stretch has come.
func (r *rescore) mark(tx *broker.ExclusiveTx, s stretch) {
	note := r.note
	note.End = s.end
	tx.Mark(rescoreName(r.id), broker.Position{Stream: r.Config.From, Partition: s.partition, Offset: s.next, Note: note.String()})
}
