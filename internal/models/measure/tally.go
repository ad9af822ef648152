package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/models/evaluate"
)

// count adds an outcome unless it is counted already, and reports whether the tally has begun to differ from
// its last fact.
func (t *tally) count(partition int32, o *taken, now time.Time) (began bool) {
	if o.offset < t.sums.Until[partition] {
		return false
	}
	t.sums.Until[partition] = o.offset + 1
	if !evaluate.Count(&t.sums, &o.data) {
		return false
	}
	t.cause = [2]string{o.id, o.source}
	if began = !t.changed; began {
		t.changed, t.since, t.from = true, now, map[int32]int64{}
	}
	if _, known := t.from[partition]; !known {
		t.from[partition] = o.offset
	}
	return began
}

// due reports whether the tally's changes are worth a fact. The first outcomes of a version are reported soon;
// the more there are, the more it takes to change a figure.
func (t *tally) due(every time.Duration, now time.Time) bool {
	switch {
	case now.Sub(t.at) < every:
		return false
	case now.Sub(t.since) >= latest:
		return true
	}
	return (t.sums.Folded-t.told)*slowGrowth >= t.told
}

// publish publishes the facts that are due, the oldest changes first. Then it commits the positions before the
// first outcome that no fact counts.
func (r *run) publish(ctx context.Context, now time.Time) error {
	if len(r.dirty) == 0 || now.Sub(r.sent) < min(factsEvery, r.Every) {
		return nil
	}
	var left []*tally
	sent := 0
	for _, t := range r.dirty {
		if sent == factsAtOnce || !t.due(r.Every, now) {
			left = append(left, t)
			continue
		}
		if err := r.tell(ctx, t, now); err != nil {
			return err // the next tenure counts again from the committed positions
		}
		sent++
	}
	if sent == 0 {
		return nil
	}
	r.dirty, r.sent = left, now
	return r.x.Do(ctx, func(tx *broker.ExclusiveTx) error {
		for partition, offset := range r.counted() {
			tx.Mark(reader, broker.Position{Stream: tidemill.StreamOutcomes, Partition: partition, Offset: offset})
		}
		return nil
	})
}

// errDisplaced reports that another reader has published figures that this one has not counted.
var errDisplaced = errors.New("another reader has published other figures")

// tell publishes the fact of a tally, and checks that the ledger has taken it. A reader that was displaced may still
// publish facts, although it can commit no position. The ledger takes those of the reader that was
// first, and the other one begins again.
func (r *run) tell(ctx context.Context, t *tally, now time.Time) error {
	v, err := t.view(r.Names, now)
	if err != nil {
		return err
	}
	_, m, err := r.Ledger.AppendModel(ctx, &v)
	if err != nil {
		return err
	}
	if i, found := m.FindLive(t.version, t.scorer); found && !m.Live[i].Reaches(&t.sums) {
		return fmt.Errorf("%s in scorer %s: %w", tidemill.VersionName(t.model, t.version), t.scorer, errDisplaced)
	}
	t.told, t.at, t.changed, t.from = t.sums.Folded, now, false, nil
	return nil
}

// counted returns for each partition the offset of the first outcome that is only in some tallies.
func (r *run) counted() map[int32]int64 {
	all := map[int32]int64{}
	for partition, offset := range r.next {
		all[partition] = offset
	}
	for _, t := range r.dirty {
		for partition, offset := range t.from {
			all[partition] = min(all[partition], offset)
		}
	}
	return all
}

// view returns the fact of a tally. Its id derives from what it counts.
func (t *tally) view(names tidemill.Names, now time.Time) (broker.View, error) {
	data, err := json.Marshal(t.sums)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the figures of %s: %w", tidemill.VersionName(t.model, t.version), err)
	}
	version := strconv.Itoa(t.version)
	return broker.View{ID: tidemill.ID(tidemill.TypeModelMeasured, t.model, version, t.scorer, strconv.FormatInt(t.sums.Folded, 10)), Source: names.Source("observer"),
		Type: tidemill.TypeModelMeasured, Subject: t.key, Time: now.UTC().Format(time.RFC3339Nano), DataContentType: "application/json",
		DataSchema: tidemill.Schema(tidemill.TypeModelMeasured), Key: []byte(tidemill.ModelKey(t.model)), Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: t.model}, {Name: tidemill.AttrModelVersion, Value: version}, {Name: tidemill.AttrScorer, Value: t.scorer},
			{Name: tidemill.AttrCausationID, Value: t.cause[0]}, {Name: tidemill.AttrCausationSource, Value: t.cause[1]}}}, nil
}
