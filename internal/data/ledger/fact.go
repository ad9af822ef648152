package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// reading is the result of reading a record of the stream.
type reading int8

const (
	legible   reading = iota // a fact about a run or a model
	foreign                  // a fact about something else
	illegible                // a malformed fact, or one with the wrong record key
)

// read returns the parts of a record that the fold needs. All except the data are copies.
func read(e *broker.Incoming, partition int32) (fold.Fact, reading) {
	if e.Err != nil {
		return fold.Fact{}, illegible
	}
	f := fold.Fact{Partition: partition, Offset: e.Offset, Data: e.Data}
	var ok bool
	if f.Type = typeOf(e.Type); f.Type != "" {
		ok = readRun(e, &f)
	} else if f.Type = modelTypeOf(e.Type); f.Type != "" {
		ok = readModel(e, &f)
	} else {
		return fold.Fact{}, foreign
	}
	if !ok || strings.ContainsAny(f.Run, " \n") {
		return fold.Fact{}, illegible
	}
	f.Run, f.At = strings.Clone(f.Run), timeOf(e)
	by, _ := e.Attribute(tidemill.AttrAuthID)
	f.By = strings.Clone(by)
	return f, legible
}

func readRun(e *broker.Incoming, f *fold.Fact) bool {
	recipe, _ := e.Attribute(tidemill.AttrRecipe)
	if recipe == "" || tidemill.CheckLabel(recipe) != nil || string(e.Key) != tidemill.RunKey(recipe, e.Subject) {
		return false
	}
	f.Recipe, f.Key = strings.Clone(recipe), strings.Clone(e.Subject)
	f.Run, _ = e.Attribute(tidemill.AttrRun)
	return true
}

// ModelFact reads a record of the stream as the fold of models does; false if it is not a
// fact about a model, or is skipped. All fields of the fact except the data are copies. A
// caller that folds these facts into the models of [Ledger.EachModel] with
// [fold.Model.Apply] has the same models as the ledger.
func ModelFact(e *broker.Incoming, partition int32) (fold.Fact, bool) {
	f, kind := read(e, partition)
	return f, kind == legible && f.Model != ""
}

// readModel accepts only valid UTF-8, because other text changes when it is written as JSON.
func readModel(e *broker.Incoming, f *fold.Fact) bool {
	name, _ := e.Attribute(tidemill.AttrModel)
	f.Run, _ = e.Attribute(tidemill.AttrRun)
	if tidemill.CheckDataset(name) != nil || string(e.Key) != tidemill.ModelKey(name) ||
		!utf8.ValidString(e.ID) || !utf8.ValidString(e.Subject) || !utf8.ValidString(f.Run) {
		return false
	}
	f.Model, f.Key, f.ID = strings.Clone(name), strings.Clone(e.Subject), strings.Clone(e.ID)
	return true
}

// typeOf returns the type's constant; empty if the fold of runs does not read the type.
func typeOf(typ string) string {
	switch typ {
	case tidemill.TypeRunRequested:
		return tidemill.TypeRunRequested
	case tidemill.TypeRunStarted:
		return tidemill.TypeRunStarted
	case tidemill.TypeRunSeen:
		return tidemill.TypeRunSeen
	case tidemill.TypeRunFinished:
		return tidemill.TypeRunFinished
	case tidemill.TypeRunCancelled:
		return tidemill.TypeRunCancelled
	case tidemill.TypeRunCommitted:
		return tidemill.TypeRunCommitted
	case tidemill.TypeRunForgotten:
		return tidemill.TypeRunForgotten
	}
	return ""
}

// modelTypeOf is like typeOf, for the fold of models.
func modelTypeOf(typ string) string {
	switch typ {
	case tidemill.TypeModelRegistered:
		return tidemill.TypeModelRegistered
	case tidemill.TypeModelPromotionProposed:
		return tidemill.TypeModelPromotionProposed
	case tidemill.TypeModelPromoted:
		return tidemill.TypeModelPromoted
	case tidemill.TypeTrialBegun:
		return tidemill.TypeTrialBegun
	case tidemill.TypeModelRefused:
		return tidemill.TypeModelRefused
	case tidemill.TypeModelAwaiting:
		return tidemill.TypeModelAwaiting
	case tidemill.TypeModelCanary:
		return tidemill.TypeModelCanary
	case tidemill.TypeModelRolledBack:
		return tidemill.TypeModelRolledBack
	case tidemill.TypeModelPinned:
		return tidemill.TypeModelPinned
	case tidemill.TypeModelUnpinned:
		return tidemill.TypeModelUnpinned
	case tidemill.TypeModelRetired:
		return tidemill.TypeModelRetired
	case tidemill.TypeModelUnloadable:
		return tidemill.TypeModelUnloadable
	case tidemill.TypeModelLoaded:
		return tidemill.TypeModelLoaded
	case tidemill.TypeModelDrifted:
		return tidemill.TypeModelDrifted
	case tidemill.TypeModelDriftEnded:
		return tidemill.TypeModelDriftEnded
	case tidemill.TypeModelMeasured:
		return tidemill.TypeModelMeasured
	}
	return ""
}

// A fact's own time is accepted only between these years. With other times the state could
// not be stored, for example the time at which a run is due.
const earliest, latest = 1970, 9000

// timeOf returns the fact's own time, else the time at which it reached the log.
func timeOf(e *broker.Incoming) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, e.View.Time); err == nil && believable(at) {
		return at.UTC()
	}
	if believable(e.Time) {
		return e.Time.UTC()
	}
	return time.Unix(0, 0).UTC()
}

func believable(at time.Time) bool {
	year := at.UTC().Year()
	return year >= earliest && year < latest
}

// readEnded reads runs that have ended. It leaves out runs that the ledger has forgotten
// since the caller got their ids.
func (l *Ledger) readEnded(ctx context.Context, ids []string) ([]tidemill.Run, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var values *redis.SliceCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key("runs"), ids...) }); err != nil {
		return nil, err
	}
	var all []tidemill.Run
	for i, v := range values.Val() {
		text, _ := v.(string)
		whole := afterWords(text, valueWords)
		if !strings.HasPrefix(whole, "{") {
			continue
		}
		r, err := decodeRun(ids[i], whole)
		if err != nil {
			return nil, err
		}
		all = append(all, *r)
	}
	return all, nil
}

var (
	// ErrCatchingUp says that Redis does not have all facts yet. No decision may be made
	// before it has them.
	ErrCatchingUp = errors.New("catching up with the facts")

	// ErrUnknown says that the ledger has no such run.
	ErrUnknown = errors.New("no such run is known")

	// ErrNoPlace says that a query's After is not the Next of a page.
	ErrNoPlace = errors.New("no page has returned that")

	// ErrClosed says that the ledger has been closed.
	ErrClosed = errors.New("the ledger is closed")
)

// AppendedError says that a fact is on the log and counts, but the wait for its outcome ended too
// early. The caller may append it again with the same id: a repeated fact changes nothing.
type AppendedError struct {
	Position broker.Position
	Err      error // ErrCatchingUp or ErrClosed, with the reason why the wait ended
}

// Error names the fact's position.
func (e *AppendedError) Error() string {
	return fmt.Sprintf("wait for the outcome of the fact at offset %d of partition %d of stream %s, which is on the log: %v",
		e.Position.Offset, e.Position.Partition, e.Position.Stream, e.Err)
}

// Unwrap returns Err.
func (e *AppendedError) Unwrap() error { return e.Err }
