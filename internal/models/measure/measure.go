package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/models/evaluate"
	"tidemill.dev/internal/ops/telemetry"
)

// Options are the needs of Run.
type Options struct {
	Broker *broker.Broker
	Names  tidemill.Names
	Ledger *ledger.Ledger
	Logger *slog.Logger

	Lag telemetry.Lag

	Every time.Duration // least time between two facts of a version; 0 means 10 s
}

const (
	reader       = "measured" // name of the transactions, and of the group with the positions
	defaultEvery = 10 * time.Second
	factsEvery   = time.Second // time between two rounds of facts
	factsAtOnce  = 100         // facts of one round
	latest       = time.Hour   // longest wait of a change for its fact
	slowGrowth   = 50          // a change of a 50th of the answers is worth a fact before that
	mostTallies  = 100_000     // tallies in memory; the ledger has all
)

// Run reads the stream of outcomes and publishes the figures until the context ends. Of several processes that
// run it, the newest continues, and the others end with [broker.ErrSuperseded].
func Run(ctx context.Context, o Options) error {
	r := &run{Options: o, all: map[tallyKey]*tally{}}
	if r.Every == 0 {
		r.Every = defaultEvery
	}
	if err := r.tenure(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("measure outcomes: %w", err)
	}
	return nil
}

// tenure takes the name of the reader, and works until another process takes it.
func (r *run) tenure(ctx context.Context) (err error) {
	if r.x, err = r.Broker.Exclusive(ctx, reader, broker.ProducerOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.x.Close(context.WithoutCancel(ctx))) }()
	if err := r.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.c.Close(context.WithoutCancel(ctx))) }()
	unlist, err := r.Lag.Report(r.c.Positions)
	if err != nil {
		return err
	}
	defer unlist()
	return r.loop(ctx)
}

// run is one tenure.
type run struct {
	Options
	x *broker.Exclusive
	c *broker.Consumer

	next  map[int32]int64 // next offset of each partition of outcomes
	all   map[tallyKey]*tally
	dirty []*tally  // tallies with changes that no fact has
	sent  time.Time // time of the last round of facts
}

// tallyKey names the figures of a version in a scorer.
type tallyKey struct {
	model   string
	version int
	scorer  string
}

// tally has the figures of a version.
type tally struct {
	tallyKey
	key     string // key of the model
	ignored bool   // whether the model does not keep these figures

	sums    tidemill.Measured
	told    int64           // outcomes that the last fact counts
	at      time.Time       // time of the last fact
	since   time.Time       // time of the first change that no fact has
	from    map[int32]int64 // offset of the first such change, by partition
	changed bool
	cause   [2]string // id and source of the newest outcome
}

// open begins to read where the process before has ended.
func (r *run) open(ctx context.Context) error {
	if err := r.Ledger.CaughtUp(ctx); err != nil {
		return err
	}
	ends, err := r.Broker.Ends(ctx, tidemill.StreamOutcomes)
	if err != nil {
		return err
	}
	committed, err := r.Broker.Committed(ctx, reader, ends)
	if err != nil {
		return err
	}
	r.next = map[int32]int64{}
	for _, p := range committed {
		r.next[p.Partition] = max(p.Offset, 0)
	}
	r.c, err = r.Broker.Consumer(ctx, broker.ConsumerOptions{Streams: []string{tidemill.StreamOutcomes}, Start: broker.Earliest(), Rest: 50 * time.Millisecond,
		Assigned: func(_ context.Context, at []broker.Position) ([]broker.Position, error) {
			for i := range at {
				if was, known := r.next[at[i].Partition]; known {
					at[i].Offset = max(at[i].Offset, was)
				}
			}
			return at, nil
		}})
	return err
}

func (r *run) loop(ctx context.Context) error {
	for {
		d, err := r.poll(ctx)
		if err != nil {
			return err
		}
		if d != nil {
			err = r.take(ctx, d)
			d.Done()
		}
		if err == nil {
			err = r.publish(ctx, time.Now())
		}
		if err != nil {
			return err
		}
	}
}

// poll returns the next delivery; nil once a fact may be due.
func (r *run) poll(ctx context.Context) (*broker.Delivery, error) {
	if len(r.dirty) == 0 {
		return r.c.Poll(ctx)
	}
	wait, cancel := context.WithTimeout(ctx, min(factsEvery, r.Every))
	defer cancel()
	d, err := r.c.Poll(wait)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	return d, err
}

// taken is an outcome of a delivery.
type taken struct {
	data       tidemill.OutcomeData
	offset     int64
	id, source string
}

// take counts the outcomes of a delivery. It asks the ledger for all figures that are not in memory
// at once.
func (r *run) take(ctx context.Context, d *broker.Delivery) error {
	all := make([]taken, 0, len(d.Events))
	for i := range d.Events {
		e := &d.Events[i]
		if e.Err != nil || e.Type != tidemill.TypeOutcome && e.Type != tidemill.TypeOutcomeCorrected {
			continue
		}
		t := taken{offset: e.Offset, id: string([]byte(e.ID)), source: string([]byte(e.Source))}
		if err := json.Unmarshal(e.Data, &t.data); err != nil || tidemill.CheckDataset(t.data.Model) != nil || t.data.Version < 1 {
			r.Logger.Warn("measure: an outcome cannot be read; it is not counted", "event", t.id, "reason", err)
			continue
		}
		all = append(all, t)
	}
	if err := r.load(ctx, all); err != nil {
		return err
	}
	now := time.Now()
	for i := range all {
		o := &all[i]
		if t := r.all[keyOf(&o.data)]; !t.ignored && t.count(d.Partition, o, now) {
			r.dirty = append(r.dirty, t)
		}
	}
	r.next[d.Partition] = d.Next()
	for i := range all { // their model may get a version, so that they count
		if k := keyOf(&all[i].data); r.all[k] != nil && r.all[k].ignored {
			delete(r.all, k)
		}
	}
	return nil
}

func keyOf(o *tidemill.OutcomeData) tallyKey { return tallyKey{o.Model, o.Version, o.Scorer} }

// load reads figures from the ledger.
func (r *run) load(ctx context.Context, outcomes []taken) error {
	r.forget() // first, because it may drop a tally of these outcomes
	unknown := map[string][]tallyKey{}
	for i := range outcomes {
		if k := keyOf(&outcomes[i].data); r.all[k] == nil && !slices.Contains(unknown[k.model], k) {
			unknown[k.model] = append(unknown[k.model], k)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	models, err := r.Ledger.ModelsOf(ctx, slices.Collect(maps.Keys(unknown)))
	if err != nil {
		return err
	}
	for name, keys := range unknown {
		for _, k := range keys {
			r.all[k] = tallyOf(models[name], k)
		}
	}
	return nil
}

func tallyOf(m *fold.Model, k tallyKey) *tally {
	t := &tally{tallyKey: k, key: m.Key, sums: tidemill.Measured{Scorer: k.scorer, Version: k.version, Until: map[int32]int64{}}}
	i, found := m.FindLive(k.version, k.scorer)
	switch {
	case found:
		t.sums = m.Live[i]
		if t.sums.Until == nil {
			t.sums.Until = map[int32]int64{}
		}
		t.told = t.sums.Folded
	case m.Last == 0 || !m.Retired.IsZero() || len(m.Live) >= fold.KeptLive && i == 0:
		t.ignored = true
	}
	return t
}

// forget drops tallies without changes if there are too many.
func (r *run) forget() {
	if len(r.all) < mostTallies {
		return
	}
	maps.DeleteFunc(r.all, func(_ tallyKey, t *tally) bool { return !t.changed })
}

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
