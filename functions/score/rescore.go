package score

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/deadletters"
)

// Rescoring says which events are scored again, by which versions, and where the
// outputs go.
type Rescoring struct {
	Broker    *broker.Broker
	Names     tidemill.Names
	Config    config.Scorer
	Champions *champions.Table
	Models    *serving.Models

	Ranges  []tidemill.Range // ranges of the scorer's stream
	Version string           // version of each model: a number, champion or previous
	Stream  string           // stream of the outputs, which is not the scorer's own
	// Resume is the id of an interrupted rescoring that goes on as it was begun. Then
	// the three fields above do not count.
	Resume string
	// Told is called with the progress from time to time. An error from it ends the
	// rescoring.
	Told func(Rescored) error
}

// Rescored is the progress. After a resume, the counts only cover the part since then.
type Rescored struct {
	ID       string            `json:"id"`
	Records  int64             `json:"records"` // records to be read
	Left     int64             `json:"left"`    // records that are left
	Scored   int64             `json:"scored"`
	Passed   int64             `json:"passed"`            // records that are not events for the scorer
	Skipped  int64             `json:"skipped"`           // events that were scored before the interruption
	Unscored int64             `json:"unscored"`          // events that no model could score
	Reasons  map[string]string `json:"reasons,omitempty"` // reasons for some of these, by position
}

const mostReasons = 5

// ErrRescore reports that a rescoring is impossible, or no longer possible.
var ErrRescore = errors.New("cannot be scored again")

// Rescore scores a part of a scorer's stream again and writes each output once to
// another stream: outputs and progress are one transaction. An interrupted one is
// resumed by its id, in any process. It has no other effects: the scorer's offsets do
// not move, and no event becomes a dead letter.
func Rescore(ctx context.Context, o Rescoring) (done Rescored, err error) {
	r, err := planned(ctx, o)
	if err != nil {
		return Rescored{}, err
	}
	r.told.ID = r.id
	if r.x, err = o.Broker.Exclusive(ctx, rescoreName(r.id), broker.ProducerOptions{AsRead: true, MaxEvent: deadletters.MaxBytes}); err != nil {
		return r.told, fmt.Errorf("score %s again: %w", o.Config.From, err)
	}
	defer func() { err = errors.Join(err, r.x.Close(context.WithoutCancel(ctx))) }()
	if err := r.run(ctx); err != nil {
		return r.told, fmt.Errorf("score %s again, as %s: %w", o.Config.From, r.id, err)
	}
	return r.told, nil
}

// rescoreName is the name of a rescoring's transactions and of the group that stores
// its progress.
func rescoreName(id string) string { return "rescore." + id }

// rescore is a rescoring under way.
type rescore struct {
	Rescoring
	id      string
	note    rescoreNote
	x       *broker.Exclusive
	to      int32 // number of the output's partitions
	stretch []rescoreRange
	told    Rescored
	done    map[int32]*earlierOutputs // outputs from before the interruption

	place   keyPlace
	cache   *cache
	plans   plans
	workers []*worker
	out     *outputs
	batch   *batch
}

// rescoreRange is the part of a partition that is left.
type rescoreRange struct {
	partition int32
	next, end int64
	answers   []int64 // offsets of outputs, as in the note
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
		if err := r.scoreRound(ctx); err != nil {
			return err
		}
	}
	return nil
}

// scoreRound scores some events of each partition in turn. So the notes of all partitions
// stay recent, and little has to be read back.
func (r *rescore) scoreRound(ctx context.Context) error {
	for i := range r.stretch {
		s := &r.stretch[i]
		if s.next == s.end {
			continue
		}
		if err := r.scoreNext(ctx, s); err != nil {
			return err
		}
		if err := r.Told(r.told); err != nil {
			return err
		}
	}
	return nil
}

// begin writes down what is to be done, or finds what was done.
func (r *rescore) begin(ctx context.Context) error {
	ends, err := r.Broker.Ends(ctx, r.Stream)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", r.Stream, err)
	}
	r.to = int32(len(ends))
	source := r.Names.Source("scorer/" + r.Config.Name + "/rescore/" + r.id)
	r.place, r.cache, r.plans = newKeyPlace(r.Config.Key, r.Config.Model), newCache(r.Config.Model, mostKeys), plans{fields: fieldsOf(&r.Config)}
	r.workers, r.out = newWorkers(r.Config.Top), newOutputs(source, r.Config.Labels)
	r.batch = &batch{arenas: make([][]byte, len(r.workers))}
	if r.Resume == "" {
		return r.x.Do(ctx, func(tx *broker.ExclusiveTx) error {
			for _, s := range r.stretch {
				r.storeProgress(tx, s)
			}
			return nil
		})
	}
	return r.findDone(ctx, source, ends)
}

// findDone reads back the outputs from before the interruption, because the laptop's
// broker can keep outputs and forget the progress.
func (r *rescore) findDone(ctx context.Context, source string, ends []broker.Position) error {
	r.done = map[int32]*earlierOutputs{}
	from := slices.Clone(ends)
	for _, s := range r.stretch {
		f := newEarlierOutputs(newAssignment(r.Config.From, s.partition, 0).prefix)
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

// answered returns from where outputs to a partition may have been sent after the note.
func (s *rescoreRange) answered(partition int) int64 {
	if partition < len(s.answers) {
		return s.answers[partition]
	}
	return 0
}

// storeProgress stores the progress of a range.
func (r *rescore) storeProgress(tx *broker.ExclusiveTx, s rescoreRange) {
	note := r.note
	note.End = s.end
	tx.Mark(rescoreName(r.id), broker.Position{Stream: r.Config.From, Partition: s.partition, Offset: s.next, Note: note.String()})
}
