package trials

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// Errors of a verdict that cannot be computed again.
var (
	ErrNoVerdict = errors.New("the version has no verdict of a trial")
	ErrExpired   = errors.New("the streams no longer have all events of the trial")
)

// Recomputed is a verdict that was computed again from the logs.
type Recomputed struct {
	Recorded tidemill.TrialVerdict
	Verdict  tidemill.TrialVerdict
	Clauses  []tidemill.Clause
	Differs  []string // names of the values that differ from those of the recorded verdict
}

// Again computes the verdict of a trial again: it reads the same records, and the candidate answers the same
// events. The measured speed is the recorded one, and so are the level of the budget and the times. Only
// Broker, Scorer, Load and Logger of the options count.
func Again(ctx context.Context, o Options, v *ledger.VersionRecord) (Recomputed, error) {
	a, err := again(ctx, o, v)
	if err != nil {
		return a, fmt.Errorf("compute the verdict on %s again: %w", tidemill.VersionName(v.Model, v.Number), err)
	}
	return a, nil
}

func again(ctx context.Context, o Options, v *ledger.VersionRecord) (Recomputed, error) {
	if v.Judgement == nil || v.Judgement.Trial == nil {
		return Recomputed{}, ErrNoVerdict
	}
	was := v.Judgement.Trial
	rules, err := newRules(was.Terms)
	if err != nil {
		return Recomputed{}, err
	}
	t := &trial{v: v, champion: was.Champion, rules: rules, seen: newCollection(), from: map[string][]int64{}}
	next := map[string][]int64{}
	for _, one := range was.Read {
		grow(t.from, one.Stream, one.Partition, one.From)
		grow(next, one.Stream, one.Partition, one.To)
		if err := t.readRange(ctx, &o, one); err != nil {
			return Recomputed{}, err
		}
	}
	if err := t.answerAll(ctx, o); err != nil {
		return Recomputed{}, err
	}
	sum := t.seen.sum(rules.Alpha)
	sum.p99 = was.P99
	now := *was
	now.TrialCounts, now.Sampled, now.Lead, now.Digest, now.Steps = sum.TrialCounts, sum.sampled, sum.leadAt(was.Budget.Level), t.seen.digest(), sum.steps
	now.Read = t.ranges(o.Scorer.From, o.Scorer.To, next)
	d := rules.decide("", was.Champion, &sum, was.Budget, was.Outcome == tidemill.TrialPassed && rules.passes(&sum, was.Budget.Level), was.Ended.Sub(was.Began))
	now.Outcome = d.outcome
	return Recomputed{*was, now, d.clauses, differences(was, &now)}, nil
}

func grow(all map[string][]int64, stream string, partition int32, offset int64) {
	for len(all[stream]) <= int(partition) {
		all[stream] = append(all[stream], 0)
	}
	all[stream][partition] = offset
}

// readRange reads answers or outcomes. The inputs are read when the candidate answers them.
func (t *trial) readRange(ctx context.Context, o *Options, r tidemill.TrialRange) error {
	starts, err := o.Broker.Places(ctx, r.Stream, broker.Earliest())
	if err != nil {
		return err
	}
	if int(r.Partition) >= len(starts) || starts[r.Partition].Offset > r.From {
		return fmt.Errorf("%w: stream %s, partition %d was read from offset %d on; a longer retention keeps them", ErrExpired, r.Stream, r.Partition, r.From)
	}
	if r.Stream == o.Scorer.From {
		return nil
	}
	at := broker.Position{Stream: r.Stream, Partition: r.Partition, Offset: r.From}
	for at.Offset < r.To {
		next, err := o.Broker.Read(ctx, at, readBytes, func(e *broker.Incoming) bool {
			if model, _ := e.Attribute(tidemill.AttrModel); e.Err == nil && e.Offset >= at.Offset && e.Offset < r.To && model == t.v.Model {
				t.take(o.Scorer.From, o.Scorer.Name, at, e)
			}
			return e.Offset < r.To-1
		})
		if err != nil {
			return err
		}
		if next <= at.Offset {
			return fmt.Errorf("%w: stream %s, partition %d ends at offset %d, before %d", ErrExpired, r.Stream, r.Partition, next, r.To)
		}
		at.Offset = next
	}
	return nil
}

// answerAll lets the candidate answer all events.
func (t *trial) answerAll(ctx context.Context, o Options) error {
	w := &answering{Options: o, pace: &pace{share: 1}, open: map[string]Candidate{}}
	defer w.close()
	all := make([]wanted, len(t.seen.needed))
	for i, at := range t.seen.needed {
		all[i] = wanted{at, t}
	}
	if err := w.answer(ctx, all); err != nil {
		return err
	}
	t.seen.forgetAnswered()
	if len(t.seen.needed) > 0 {
		return fmt.Errorf("%w: %s", ErrLater, t.lastErr)
	}
	return nil
}

// differences returns the names of the fields in which two verdicts differ.
func differences(was, now *tidemill.TrialVerdict) (all []string) {
	for _, f := range []struct {
		name     string
		was, now any
	}{{"outcome", was.Outcome, now.Outcome}, {"counts", was.TrialCounts, now.TrialCounts}, {"sampled", was.Sampled, now.Sampled},
		{"lead", was.Lead, now.Lead}, {"read", was.Read, now.Read}, {"digest", was.Digest, now.Digest}} {
		if !reflect.DeepEqual(f.was, f.now) {
			all = append(all, f.name)
		}
	}
	return all
}
