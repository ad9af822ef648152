package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions/score"
)

// scoredStory is the content of the streams after a round of scorers.
type scoredStory struct {
	in      []record // published events, ordered by offset in each partition
	out     []output // outputs, in the same order
	letters []deadLetter
	swaps   []swapped
	pass    bool // events without a model are passed on unchanged
	torn    bool // the embedded Kafka was killed, so transactions may be torn: see judgeOnce
}

// output is an event on the output stream.
type output struct {
	partition  int32
	offset     int64
	id, key    string
	cause      string // id of the event that was scored or passed on
	model      string // empty if the event was passed on
	version    int
	label      string
	scores     int
	in         input // input that the output's id names; empty if the event was passed on
	unexpected string
}

// swapped is a scorer's report of the first event of a version.
type swapped struct {
	model     string
	version   int
	partition int32
	offset    int64
}

// read reads the data for the judge.
func (r *scorersRound) read(ctx context.Context) (err error) {
	r.story.pass, r.story.torn = r.drawn.pass, len(r.servers) > 1 && len(r.fleet.hits(brokerName)) > 0
	if r.story.in, err = readStream(ctx, r.b, streamIn); err != nil {
		return err
	}
	r.in = r.story.in
	r.journal, err = readJournals(r.dir, "")
	return errors.Join(err, r.readEnds(ctx), r.readSwaps(ctx))
}

// readEnds reads the new outputs and dead letters.
func (r *scorersRound) readEnds(ctx context.Context) (err error) {
	r.outAt, err = readOn(ctx, r.b, streamOut, r.outAt, func(partition int32, e *broker.Incoming) {
		r.story.out = append(r.story.out, outputOf(partition, e))
	})
	if err != nil {
		return err
	}
	var bad error
	r.lettersAt, err = readOn(ctx, r.b, tidemill.StreamDeadLetters, r.lettersAt, func(_ int32, e *broker.Incoming) {
		l, err := letterOf(e)
		bad = errors.Join(bad, err)
		r.story.letters = append(r.story.letters, l)
	})
	return errors.Join(err, bad)
}

func outputOf(partition int32, e *broker.Incoming) output {
	v := e.View.Clone()
	o := output{partition: partition, offset: e.Offset, id: v.ID, key: v.Subject}
	switch v.Type {
	case tidemill.TypeScored:
		o.read(&v)
	case typeEvent:
		o.cause = v.ID
	default:
		o.unexpected = "its type is " + v.Type
	}
	return o
}

// read parses a scored event.
func (o *output) read(v *broker.View) {
	o.cause, _ = v.Attribute(tidemill.AttrCausationID)
	source, _ := v.Attribute(tidemill.AttrCausationSource)
	o.model, _ = v.Attribute(tidemill.AttrModel)
	version, _ := v.Attribute(tidemill.AttrModelVersion)
	var data score.Scored
	err := json.Unmarshal(v.Data, &data)
	o.label, o.scores = data.Label, len(data.Scores)
	var failed error
	o.version, failed = strconv.Atoi(version)
	n, named := fmt.Sscanf(o.id, streamIn+"/%d/%d", &o.in.partition, &o.in.offset)
	if err = errors.Join(err, failed, named); err != nil || source != sourceHere || n != 2 {
		o.unexpected = fmt.Sprintf("it cannot be read: caused by %q: %v", source, err)
	}
}

// readSwaps reads the scorers' reports of swaps.
func (r *scorersRound) readSwaps(ctx context.Context) (err error) {
	var bad error
	r.swapsAt, err = readOn(ctx, r.b, tidemill.StreamProgress, r.swapsAt, func(_ int32, e *broker.Incoming) {
		if e.Type != tidemill.TypeScorerSwapped {
			return
		}
		var data tidemill.ScorerSwappedData
		err := json.Unmarshal(e.Data, &data)
		v := e.View.Clone()
		model, _ := v.Attribute(tidemill.AttrModel)
		version, _ := v.Attribute(tidemill.AttrModelVersion)
		number, failed := strconv.Atoi(version)
		bad = errors.Join(bad, err, failed)
		r.story.swaps = append(r.story.swaps, swapped{model, number, data.Partition, data.Offset})
	})
	return errors.Join(err, bad)
}
