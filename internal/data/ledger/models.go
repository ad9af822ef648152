package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// Model returns a model. If it is not known, only its name is set.
func (l *Ledger) Model(ctx context.Context, name string) (*fold.Model, error) {
	all, err := parseStates[fold.Model](ctx, l, hashModels, []string{name})
	if err != nil {
		return nil, fmt.Errorf("look up model %s: %w", name, err)
	}
	all[0].Name = name
	return all[0], nil
}

// ModelsOf returns several models by their names. Only the name of an unknown model is set.
func (l *Ledger) ModelsOf(ctx context.Context, names []string) (map[string]*fold.Model, error) {
	found, err := parseStates[fold.Model](ctx, l, hashModels, names)
	if err != nil {
		return nil, fmt.Errorf("look up %d models: %w", len(names), err)
	}
	all := make(map[string]*fold.Model, len(names))
	for i, m := range found {
		m.Name, all[names[i]] = names[i], m
	}
	return all, nil
}

// VersionRecord is a version with its state and its gate's judgement.
type VersionRecord struct {
	tidemill.Version
	State     tidemill.VersionState `json:"state"`
	Judgement *tidemill.Judgement   `json:"judgement,omitempty"` // nil if it is not judged yet
}

// Versions returns the versions that a model keeps, the newest first. If numbers are given,
// it returns only those. It leaves out versions that are dropped during the call.
func (l *Ledger) Versions(ctx context.Context, model string, numbers ...int) ([]VersionRecord, error) {
	m, err := l.Model(ctx, model)
	if err != nil {
		return nil, fmt.Errorf("list the versions: %w", err)
	}
	var held []HeldBy
	for _, h := range slices.Backward(m.Versions) {
		if len(numbers) == 0 || slices.Contains(numbers, h.Number) {
			held = append(held, HeldBy{model, h})
		}
	}
	all, err := l.VersionsOf(ctx, held)
	if err != nil {
		return nil, fmt.Errorf("list the versions of model %s: %w", model, err)
	}
	return all, nil
}

// HeldBy is a version that a model keeps.
type HeldBy struct {
	Model string
	fold.Held
}

// VersionsOf returns some versions of some models. It leaves out versions that are dropped
// during the call.
func (l *Ledger) VersionsOf(ctx context.Context, held []HeldBy) ([]VersionRecord, error) {
	if len(held) == 0 {
		return nil, nil
	}
	names := make([]string, len(held))
	for i, h := range held {
		names[i] = tidemill.VersionName(h.Model, h.Number)
	}
	var versions, judgements *redis.SliceCmd
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		versions, judgements = pipe.HMGet(ctx, l.key(hashVersions), names...), pipe.HMGet(ctx, l.key(hashJudgements), names...)
	})
	if err != nil {
		return nil, err
	}
	var all []VersionRecord
	for i, h := range held {
		if versions.Val()[i] == nil {
			continue
		}
		v, err := decode[tidemill.Version](names[i], versions.Val()[i])
		if err != nil {
			return nil, err
		}
		r := VersionRecord{Version: *v, State: h.State}
		if judged := judgements.Val()[i]; judged != nil {
			if r.Judgement, err = decode[tidemill.Judgement](names[i], judged); err != nil {
				return nil, err
			}
		}
		if h.Why != "" && r.Judgement != nil {
			r.Judgement.Passed = false
			r.Judgement.Sentence += "; refused: " + h.Why
		}
		all = append(all, r)
	}
	return all, nil
}

// Owed returns the names of the models with announcements due, in no order.
func (l *Ledger) Owed(ctx context.Context) ([]string, error) {
	var names *redis.StringSliceCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { names = pipe.HKeys(ctx, l.key(hashOwed)) }); err != nil {
		return nil, fmt.Errorf("list the models with announcements due: %w", err)
	}
	return names.Val(), nil
}

// ChampionMetrics returns the metrics that the champions of some models were registered
// with, by model.
func (l *Ledger) ChampionMetrics(ctx context.Context, models []fold.Model) (map[string]map[string]float64, error) {
	all, names, versions := map[string]map[string]float64{}, []string{}, []string{}
	for i := range models {
		if m := &models[i]; m.Champion != 0 {
			names, versions = append(names, m.Name), append(versions, tidemill.VersionName(m.Name, m.Champion))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	var values *redis.SliceCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key(hashVersions), versions...) }); err != nil {
		return nil, fmt.Errorf("look up the metrics of %d champions: %w", len(names), err)
	}
	for i, v := range values.Val() {
		m, err := decode[struct {
			Metrics map[string]float64 `json:"metrics"`
		}](versions[i], v)
		if err != nil {
			return nil, err
		}
		if m.Metrics != nil {
			all[names[i]] = m.Metrics
		}
	}
	return all, nil
}

// eachAtOnce limits how many models are read at a time. A single read of very many models
// would block Redis for other clients.
const eachAtOnce = 500

// EachModel calls fn with every model that the facts have named, even without versions, and
// returns a position and the last fact of each partition. Each model contains all facts before the position
// of its partition, and perhaps some later ones. If the caller folds the facts from the
// positions on with [fold.Model.Apply], it misses none and applies none twice. If Redis
// forgets facts during the call, the error is ErrCatchingUp, and the models may be wrong.
func (l *Ledger) EachModel(ctx context.Context, fn func(*fold.Model)) ([]broker.Position, LastFacts, error) {
	var names *redis.StringSliceCmd
	from, err := l.consistentAt(ctx, filling{}, func(pipe redis.Pipeliner) { names = pipe.HKeys(ctx, l.key(hashModels)) })
	if err != nil {
		return nil, nil, fmt.Errorf("read all models: %w", err)
	}
	for some := range slices.Chunk(names.Val(), eachAtOnce) {
		if err := l.eachOf(ctx, from, some, fn); err != nil {
			return nil, nil, fmt.Errorf("read %d models: %w", len(names.Val()), err)
		}
	}
	places := make([]broker.Position, 0, len(from.applied))
	for partition, next := range from.applied {
		places = append(places, broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: next})
	}
	slices.SortFunc(places, func(a, b broker.Position) int { return cmp.Compare(a.Partition, b.Partition) })
	return places, from.last, nil
}

func (l *Ledger) eachOf(ctx context.Context, from filling, names []string, fn func(*fold.Model)) error {
	var values *redis.SliceCmd
	if _, err := l.consistentAt(ctx, from, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key(hashModels), names...) }); err != nil {
		return err
	}
	for i, v := range values.Val() {
		m, err := decode[fold.Model](names[i], v)
		if err != nil {
			return err
		}
		if m.Next > 0 {
			fn(m)
		}
	}
	return nil
}

// consistentAt is like readConsistent, and also returns the next offset of each partition at that
// moment. It fails if an offset is less than in from, or if from belongs to another filling. The
// check of the sum does not detect a lower offset, because an older copy of Redis may have advanced
// in other partitions.
func (l *Ledger) consistentAt(ctx context.Context, from filling, ask func(redis.Pipeliner)) (filling, error) {
	var at *redis.MapStringStringCmd
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		at = pipe.HGetAll(ctx, l.key("at"))
		ask(pipe)
	})
	if err != nil {
		return filling{}, err
	}
	f, err := parseFilling(at.Val())
	if err != nil {
		return filling{}, err
	}
	if from.id != "" && from.id != f.id {
		return filling{}, l.recheckNow()
	}
	for partition, next := range from.applied {
		if f.applied[partition] < next {
			return filling{}, l.recheckNow()
		}
	}
	return f, nil
}

// ModelsMark returns a number that grows whenever a model's champion changes. Some other
// changes of models increase it too. It costs one request to Redis.
func (l *Ledger) ModelsMark(ctx context.Context) (int64, error) {
	var listed *redis.MapStringStringCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { listed = pipe.HGetAll(ctx, l.key(hashListed)) }); err != nil {
		return 0, fmt.Errorf("ask whether models have changed: %w", err)
	}
	sum := int64(0)
	for partition, behind := range listed.Val() {
		n, err := strconv.ParseInt(behind, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("ask whether the models of partition %s have changed: %w", partition, err)
		}
		sum += n
	}
	return sum, nil
}
