package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

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
	r := &rescore{Rescoring: o}
	if o.Resume != "" {
		return r, r.resume(ctx)
	}
	if err := checkRescore(o.Config.Name, o.Config.From, o.Config.To, o.Version, o.Stream); err != nil {
		return nil, err
	}
	ends, err := o.Broker.Ends(ctx, o.Stream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", o.Stream, err)
	}
	r.id = tidemill.ID("rescore", o.Config.Name, o.Version, o.Stream, time.Now().String())[:12]
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
