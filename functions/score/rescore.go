package score

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

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
	// the three fields above do not count. If there is no such rescoring, and Stream is
	// set, a new one begins under this id.
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
	Deleted  int64             `json:"deleted,omitempty"` // records that retention deleted before they were read
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

// rescoreNote is stored next to each offset of a rescoring, so that a process that resumes it
// knows what was requested.
type rescoreNote struct {
	Scorer  string  `json:"s"`
	Version string  `json:"v"`
	Stream  string  `json:"t"`
	Records int64   `json:"n"`
	End     int64   `json:"e"`
	Answers []int64 `json:"a"` // first offset that outputs of later inputs can have, by partition of the output
}

func (n rescoreNote) String() string {
	text, _ := json.Marshal(n) // cannot fail: it holds only texts and numbers
	return string(text)
}

// The versions that answer, besides a number.
const (
	VersionChampion = tidemill.WhichChampion
	VersionPrevious = tidemill.WhichPrevious
)

// checkRescore says what is wrong with a version or with the stream of the outputs.
func checkRescore(scorer string, from, to, version, stream string) error {
	n, err := strconv.Atoi(version)
	switch {
	case version != VersionChampion && version != VersionPrevious && (err != nil || n < 1):
		return fmt.Errorf("%w by version %q: give a number, %s or %s", ErrRescore, version, VersionChampion, VersionPrevious)
	case stream == "":
		return fmt.Errorf("%w without a stream for the answers: name one of yours", ErrRescore)
	case stream == from || stream == to:
		return fmt.Errorf("%w onto stream %s, which scorer %s works with itself: its readers would take the answers for the scorer's", ErrRescore, stream, scorer)
	}
	if err := tidemill.ReservedStream(stream); err != nil {
		return fmt.Errorf("%w onto it: %w", ErrRescore, err)
	}
	return nil
}

// planned returns a new rescoring, or the rest of an interrupted one.
func planned(ctx context.Context, o Rescoring) (*rescore, error) {
	if o.Resume != "" {
		r := &rescore{Rescoring: o}
		if err := r.resume(ctx); o.Stream == "" || !errors.Is(err, errNoResume) {
			return r, err
		}
	}
	if err := checkRescore(o.Config.Name, o.Config.From, o.Config.To, o.Version, o.Stream); err != nil {
		return nil, err
	}
	ends, err := o.Broker.Ends(ctx, o.Stream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", o.Stream, err)
	}
	r := &rescore{Rescoring: o, id: cmp.Or(o.Resume, tidemill.ID("rescore", o.Config.Name, o.Version, o.Stream, time.Now().String())[:12])}
	r.Resume = ""
	r.note = rescoreNote{Scorer: o.Config.Name, Version: o.Version, Stream: o.Stream}
	for _, e := range ends {
		r.note.Answers = append(r.note.Answers, e.Offset)
	}
	for _, s := range o.Ranges {
		r.stretch = append(r.stretch, rescoreRange{partition: s.Partition, next: s.From, end: s.To})
		r.note.Records += s.To - s.From
	}
	return r, nil
}

var errNoResume = errors.New("it is unknown: Kafka removes an interrupted rescore after a week; start a new one")

func (r *rescore) resume(ctx context.Context) error {
	r.id = r.Resume
	if err := tidemill.CheckLabel(r.id); err != nil {
		return fmt.Errorf("%w as %q: %w", ErrRescore, r.id, err)
	}
	all, err := r.Broker.Ends(ctx, r.Config.From)
	if err == nil {
		all, err = r.Broker.Committed(ctx, rescoreName(r.id), all)
	}
	if err != nil {
		return fmt.Errorf("find how far %s has come: %w", r.id, err)
	}
	for _, p := range all {
		if err := r.addRest(p); err != nil {
			return err
		}
	}
	if r.note.Scorer != r.Config.Name {
		return fmt.Errorf("%w as %s: %w", ErrRescore, r.id, errNoResume)
	}
	r.Version, r.Stream, r.told.Records = r.note.Version, r.note.Stream, r.note.Records
	return nil
}

// addRest adds the rest of a partition.
func (r *rescore) addRest(p broker.Position) error {
	if p.Offset < 0 {
		return nil
	}
	var n rescoreNote
	if err := json.Unmarshal([]byte(p.Note), &n); err != nil {
		return fmt.Errorf("%w as %s: its progress was stored by another version of Tidemill: %w", ErrRescore, r.id, err)
	}
	r.stretch = append(r.stretch, rescoreRange{p.Partition, p.Offset, n.End, slices.Clone(n.Answers)})
	for i := range min(len(n.Answers), len(r.note.Answers)) { // each note contains the earlier outputs
		n.Answers[i] = max(n.Answers[i], r.note.Answers[i])
	}
	r.note = n
	return nil
}
