package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// eachAtOnce bounds how many models are read at a time: all of many at once would
// keep Redis from others for as long as that takes.
const eachAtOnce = 500

// EachModel calls fn with every model that facts have ever been about, also one
// without versions, and returns places among the facts. A model is as all facts
// before its partition's place have left it, or as some later ones have: whoever
// folds the facts from the places on into what it was given, as
// [tidemill.Model.Apply] does, misses none and counts none twice. If Redis forgets
// meanwhile the error is ErrCatchingUp, and what fn was given may be of no use.
func (l *Ledger) EachModel(ctx context.Context, fn func(*tidemill.Model)) ([]broker.Position, error) {
	var names *redis.StringSliceCmd
	from, err := l.placed(ctx, nil, func(pipe redis.Pipeliner) { names = pipe.HKeys(ctx, l.key(hashModels)) })
	if err != nil {
		return nil, fmt.Errorf("read all models: %w", err)
	}
	for some := range slices.Chunk(names.Val(), eachAtOnce) {
		if err := l.eachOf(ctx, from, some, fn); err != nil {
			return nil, fmt.Errorf("read %d models: %w", len(names.Val()), err)
		}
	}
	places := make([]broker.Position, 0, len(from))
	for partition, next := range from {
		places = append(places, broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: next})
	}
	slices.SortFunc(places, func(a, b broker.Position) int { return cmp.Compare(a.Partition, b.Partition) })
	return places, nil
}

func (l *Ledger) eachOf(ctx context.Context, from map[int32]int64, names []string, fn func(*tidemill.Model)) error {
	var values *redis.SliceCmd
	if _, err := l.placed(ctx, from, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key(hashModels), names...) }); err != nil {
		return err
	}
	for i, v := range values.Val() {
		m, err := decode[tidemill.Model](names[i], v)
		if err != nil {
			return err
		}
		if m.Next > 0 {
			fn(m)
		}
	}
	return nil
}

// placed is consistent, and tells how far each partition was at that moment. It
// may not be less than some places: an older copy of Redis may have come on in
// other partitions.
func (l *Ledger) placed(ctx context.Context, from map[int32]int64, ask func(redis.Pipeliner)) (map[int32]int64, error) {
	var at *redis.MapStringStringCmd
	err := l.consistent(ctx, func(pipe redis.Pipeliner) {
		at = pipe.HGetAll(ctx, l.key("at"))
		ask(pipe)
	})
	if err != nil {
		return nil, err
	}
	places, err := placesIn(at.Val())
	if err != nil {
		return nil, err
	}
	for partition, next := range from {
		if places[partition] < next {
			return nil, l.behind()
		}
	}
	return places, nil
}
