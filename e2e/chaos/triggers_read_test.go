package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// read reads the data for the judge.
func (r *triggersRound) read(ctx context.Context) (err error) {
	r.story.attempts, r.wrong = r.sink.story()
	if r.story.in, err = readStream(ctx, r.b, streamIn); err != nil {
		return err
	}
	r.in = r.story.in
	r.journal, err = readJournals(r.dir, "")
	return errors.Join(err, r.readLetters(ctx), r.readReplies(ctx))
}

func replyOf(partition int32, e *broker.Incoming) reply {
	v := e.View.Clone()
	p := reply{partition: partition, offset: e.Offset, id: v.ID, key: v.Subject, data: string(v.Data)}
	p.trigger, _ = v.Attribute(tidemill.AttrTrigger)
	p.causeID, _ = v.Attribute(tidemill.AttrCausationID)
	p.causeSrc, _ = v.Attribute(tidemill.AttrCausationSource)
	p.to, _ = v.Attribute(extReplyTo)
	return p
}

// readLetters reads the new dead letters.
func (r *triggersRound) readLetters(ctx context.Context) (err error) {
	var bad error
	r.lettersAt, err = r.readOn(ctx, tidemill.StreamDeadLetters, r.lettersAt, func(_ int32, e *broker.Incoming) {
		l, err := letterOf(e)
		bad = errors.Join(bad, err)
		r.story.letters = append(r.story.letters, l)
	})
	return errors.Join(err, bad)
}

// readReplies reads the new replies.
func (r *triggersRound) readReplies(ctx context.Context) (err error) {
	r.repliesAt, err = r.readOn(ctx, streamOut, r.repliesAt, func(partition int32, e *broker.Incoming) {
		r.story.replies = append(r.story.replies, replyOf(partition, e))
	})
	return err
}

// replied returns the events whose reply is on its stream.
func (r *triggersRound) replied(ctx context.Context) (map[string]bool, error) {
	err := r.readReplies(ctx)
	all := map[string]bool{}
	for _, p := range r.story.replies {
		all[p.causeID] = true
	}
	return all, err
}

// readOn reads a stream from the given positions, or from its beginning.
func (r *triggersRound) readOn(ctx context.Context, stream string, from []broker.Position, fn func(int32, *broker.Incoming)) ([]broker.Position, error) {
	return readOn(ctx, r.b, stream, from, fn)
}

func readOn(ctx context.Context, b *broker.Broker, stream string, from []broker.Position, fn func(int32, *broker.Incoming)) ([]broker.Position, error) {
	if from == nil {
		var err error
		if from, err = b.Ends(ctx, stream); err != nil {
			return nil, err
		}
		for i := range from {
			from[i].Offset = 0
		}
	}
	next := make([]broker.Position, len(from))
	ctx, cancel := context.WithTimeout(ctx, awaitLimit) // a transaction that never ends would otherwise stop the test without a report
	defer cancel()
	for i, p := range from { // one partition at a time, so that each is read in order
		stopped, err := b.ReadBack(ctx, []broker.Position{p}, func(e *broker.Incoming) { fn(p.Partition, e) })
		if err != nil {
			return from, err // the same events are then read twice, which changes nothing
		}
		next[i] = stopped[0]
	}
	return next, nil
}

func letterOf(e *broker.Incoming) (deadLetter, error) {
	var data struct{ Trigger, Scorer, OriginalID, Reason string }
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return deadLetter{}, fmt.Errorf("read the dead letter %s: %w", e.ID, err)
	}
	rule := data.Trigger
	if data.Scorer != "" {
		rule = "scorer/" + data.Scorer
	}
	return deadLetter{id: strings.Clone(e.ID), rule: rule, of: data.OriginalID, reason: data.Reason}, nil
}
