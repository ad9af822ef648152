package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// Model is a model as it is; an empty one with its name if it is not known.
func (l *Ledger) Model(ctx context.Context, name string) (*tidemill.Model, error) {
	all, err := states[tidemill.Model](ctx, l, hashModels, []string{name})
	if err != nil {
		return nil, fmt.Errorf("look up model %s: %w", name, err)
	}
	all[0].Name = name
	return all[0], nil
}

// ModelsOf are several models by their names; an empty one where nothing is known.
func (l *Ledger) ModelsOf(ctx context.Context, names []string) (map[string]*tidemill.Model, error) {
	found, err := states[tidemill.Model](ctx, l, hashModels, names)
	if err != nil {
		return nil, fmt.Errorf("look up %d models: %w", len(names), err)
	}
	all := make(map[string]*tidemill.Model, len(names))
	for i, m := range found {
		m.Name, all[names[i]] = names[i], m
	}
	return all, nil
}

// VersionRecord is a version, and what its gate said of it.
type VersionRecord struct {
	tidemill.Version
	State     tidemill.VersionState `json:"state"`
	Judgement *tidemill.Judgement   `json:"judgement,omitempty"` // nil until it was judged
}

// Versions are those of a model that are kept, the newest first; of some
// numbers, if any are given. One that is let go meanwhile is left out.
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
	tidemill.Held
}

// VersionsOf are some versions of some models. One that is let go meanwhile is left
// out.
func (l *Ledger) VersionsOf(ctx context.Context, held []HeldBy) ([]VersionRecord, error) {
	if len(held) == 0 {
		return nil, nil
	}
	names := make([]string, len(held))
	for i, h := range held {
		names[i] = tidemill.VersionName(h.Model, h.Number)
	}
	var versions, judgements *redis.SliceCmd
	err := l.consistent(ctx, func(pipe redis.Pipeliner) {
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
		all = append(all, r)
	}
	return all, nil
}

// Owed are the models that have announcements due, in no order.
func (l *Ledger) Owed(ctx context.Context) ([]string, error) {
	var names *redis.StringSliceCmd
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { names = pipe.HKeys(ctx, l.key(hashOwed)) }); err != nil {
		return nil, fmt.Errorf("list the models with announcements due: %w", err)
	}
	return names.Val(), nil
}

// ChampionMetrics are what the champions of some models were registered with, by
// model.
func (l *Ledger) ChampionMetrics(ctx context.Context, models []tidemill.Model) (map[string]map[string]float64, error) {
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
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key(hashVersions), versions...) }); err != nil {
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
