package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions/score"
	"tidemill.dev/loadtest/internal/fleet"
)

// outputAudit checks the committed outputs of a scorer: each input up to the last scored input must
// have one output, by the key's own model.
type outputAudit struct {
	w      *scoreBench
	keys   []int32 // key of each event, by the event's number
	oracle *oracle
	seen   [partitions][]bool
	done   [partitions]int64 // offsets that the scorer has committed: all inputs before them must have an output
	counts auditCounts
	first  error // first fault
	// scored, if not nil, is called with each output.
	scored func(e *broker.Incoming, number, key, version int)
}

// auditCounts are the counts of an audit. All counts except the first two must be zero.
type auditCounts struct{ outputs, checked, lost, twice, wrong int }

// checkInterval is the interval of outputs that are evaluated again.
const checkInterval = 499

func (w *scoreBench) newAudit() (*outputAudit, error) {
	o, err := w.newOracle()
	a := &outputAudit{w: w, oracle: o}
	for p := range a.seen {
		a.seen[p] = make([]bool, len(w.places.at[p]))
	}
	keys := w.fleet.Keys()
	for range w.places.count() {
		a.keys = append(a.keys, int32(keys.Next()))
	}
	return a, err
}

// checkStream checks a whole output stream.
func (a *outputAudit) checkStream(ctx context.Context, stream string) error {
	from, err := a.w.st.b.Places(ctx, stream, broker.Earliest())
	if err != nil {
		return err
	}
	if _, err := a.w.st.b.ReadBack(ctx, from, a.output); err != nil {
		return err
	}
	a.findLost()
	if a.counts.outputs == 0 {
		return fmt.Errorf("stream %s has no outputs", stream)
	}
	return a.readLetters(ctx)
}

func (a *outputAudit) output(e *broker.Incoming) {
	if e.Type != tidemill.TypeScored {
		return
	}
	a.counts.outputs++
	partition, offset, err := cutPosition(e.ID)
	if err != nil {
		a.wrong(fmt.Errorf("output %s: %w", e.ID, err))
		return
	}
	number, ok := a.w.places.eventAt(partition, offset)
	if !ok {
		a.wrong(fmt.Errorf("output %s is of no input", e.ID))
		return
	}
	if a.seen[partition][offset] {
		a.counts.twice++
		a.blame(fmt.Errorf("input %s was scored twice", e.ID))
	}
	a.seen[partition][offset] = true
	a.checkOutput(e, number)
}

// checkOutput checks the model and version of an output, and for some outputs the answer.
func (a *outputAudit) checkOutput(e *broker.Incoming, number int) {
	key := int(a.keys[number])
	model, _ := e.Attribute(tidemill.AttrModel)
	text, _ := e.Attribute(tidemill.AttrModelVersion)
	version, err := strconv.Atoi(text)
	switch {
	case err != nil || model != fleet.Model(key) || e.Subject != fleet.Key(key):
		a.wrong(fmt.Errorf("output %s of %s was scored by version %s of %s", e.ID, fleet.Key(key), text, model))
		return
	case number%checkInterval == 0:
		a.counts.checked++
		if err := a.evaluate(e, number, key, version); err != nil {
			a.wrong(fmt.Errorf("output %s by version %d of %s: %w", e.ID, version, model, err))
		}
	}
	if a.scored != nil {
		a.scored(e, number, key, version)
	}
}

func (a *outputAudit) evaluate(e *broker.Incoming, number, key, version int) error {
	var d score.Scored
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return err
	}
	return a.oracle.check(&d, number, key, version)
}

func (a *outputAudit) wrong(err error) {
	a.counts.wrong++
	a.blame(err)
}

func (a *outputAudit) blame(err error) {
	if a.first == nil {
		a.first = err
	}
}

// findLost counts the inputs that were skipped.
func (a *outputAudit) findLost() {
	for p, seen := range a.seen {
		last := len(seen) - 1
		for last >= 0 && !seen[last] {
			last--
		}
		for offset := range max(last, int(a.done[p])) {
			if !seen[offset] {
				a.counts.lost++
				a.blame(fmt.Errorf("input %s/%d/%d was not scored, and later ones were, or it is committed", inStream, p, offset))
			}
		}
	}
}

// cutPosition takes the position from the id of a scored event.
func cutPosition(id string) (partition int, offset int64, err error) {
	rest, ok := strings.CutPrefix(id, inStream+"/")
	if !ok {
		return 0, 0, fmt.Errorf("it is not of stream %s", inStream)
	}
	first, second, _ := strings.Cut(rest, "/")
	if partition, err = strconv.Atoi(first); err != nil {
		return 0, 0, err
	}
	offset, err = strconv.ParseInt(second, 10, 64)
	return partition, offset, err
}

// readLetters returns an error for the scorer's first dead letter. There should be no dead letter,
// because every key has a model.
func (a *outputAudit) readLetters(ctx context.Context) error {
	from, err := a.w.st.b.Places(ctx, tidemill.StreamDeadLetters, broker.Earliest())
	if err != nil {
		return err
	}
	letters := 0
	var first broker.DeadLetter
	var torn error
	_, err = a.w.st.b.ReadBack(ctx, from, func(e *broker.Incoming) {
		if letters++; letters == 1 {
			torn = json.Unmarshal(e.Data, &first)
		}
	})
	if err == nil && torn == nil && letters > 0 {
		a.first = fmt.Errorf("%d dead letters, the first of %s/%d/%d: %s", letters, first.Stream, first.Partition, first.Offset, first.Reason)
	}
	if err == nil {
		err = torn
	}
	return err
}
