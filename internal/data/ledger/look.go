package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// decidable is the sum that Redis must have reached. It fails while that is not
// known yet.
func (l *Ledger) decidable() (sum int64, err error) {
	sum, caught := l.progress.known()
	if !caught {
		return 0, ErrCatchingUp
	}
	return sum, nil
}

// behind lets it be looked at once whether Redis has forgotten. Until then
// nothing is decided.
func (l *Ledger) behind() error {
	l.progress.setCaught(false)
	l.doubt.raise()
	return ErrCatchingUp
}

// consistent reads at one moment, at which Redis held all facts that are known
// of.
func (l *Ledger) consistent(ctx context.Context, ask func(redis.Pipeliner)) error {
	sum, err := l.decidable()
	if err != nil {
		return err
	}
	var at *redis.SliceCmd
	done, err := l.o.Redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		at = pipe.HMGet(ctx, l.key("at"), "sum", "ready")
		ask(pipe)
		return nil
	})
	if err == redis.Nil { // an absent field, which is an answer
		err = nil
		for _, c := range done {
			if failed := c.Err(); failed != nil && failed != redis.Nil {
				err = failed
			}
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("ask redis: %w", err)
	case !holds(at.Val(), sum):
		return l.behind()
	}
	return nil
}

// states reads makings or models, an empty one where nothing is known.
func states[T any](ctx context.Context, l *Ledger, hash string, members []string) ([]*T, error) {
	if len(members) == 0 {
		return nil, nil
	}
	var values *redis.SliceCmd
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key(hash), members...) }); err != nil {
		return nil, err
	}
	return decodeAll[T](members, values.Val())
}

func decodeAll[T any](members []string, values []any) ([]*T, error) {
	all := make([]*T, len(values))
	for i, v := range values {
		var err error
		if all[i], err = decode[T](members[i], v); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Making is what a recipe makes for a key; an empty one if nothing is known.
func (l *Ledger) Making(ctx context.Context, recipe, key string) (*tidemill.Making, error) {
	all, err := states[tidemill.Making](ctx, l, hashMakings, []string{tidemill.RunKey(recipe, key)})
	if err != nil {
		return nil, fmt.Errorf("look up what recipe %s makes for key %s: %w", recipe, key, err)
	}
	if all[0].Next == 0 {
		all[0].Recipe, all[0].Key = recipe, key
	}
	return all[0], nil
}

// Run finds a run by its id, live, waiting or ended and still named.
func (l *Ledger) Run(ctx context.Context, id string) (*tidemill.Run, error) {
	all, err := l.RunsOf(ctx, []string{id})
	if err != nil {
		return nil, err
	}
	if all[id] == nil {
		return nil, fmt.Errorf("look up run %s: %w", id, ErrUnknown)
	}
	return all[id], nil
}

func decodeRun(id, text string) (*tidemill.Run, error) {
	r := &tidemill.Run{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("read run %s: %w", id, err)
	}
	return r, nil
}

// Keys calls fn with every key that a recipe has ever been asked for, in no
// order, until it returns false.
func (l *Ledger) Keys(ctx context.Context, recipe string, fn func(key string) bool) error {
	const some = 1000
	var cursor uint64
	for {
		var scan *redis.ScanCmd
		if err := l.consistent(ctx, func(pipe redis.Pipeliner) { scan = pipe.SScan(ctx, l.key("keys:"+recipe), cursor, "", some) }); err != nil {
			return fmt.Errorf("list the keys of recipe %s: %w", recipe, err)
		}
		keys, next := scan.Val()
		for _, k := range keys {
			if !fn(k) {
				return nil
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Counts are how many there are.
type Counts struct{ Keys, Waiting, Live int }

// Counts are those of each recipe.
func (l *Ledger) Counts(ctx context.Context) (map[string]Counts, error) {
	var fields *redis.MapStringStringCmd
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { fields = pipe.HGetAll(ctx, l.key("counts")) }); err != nil {
		return nil, fmt.Errorf("count the runs: %w", err)
	}
	all := map[string]Counts{}
	for name, text := range fields.Val() {
		recipe, what, _ := strings.Cut(name, "/")
		c, n := all[recipe], int(number(text))
		switch tidemill.RunState(what) {
		case "keys":
			c.Keys = n
		case tidemill.RunWaiting:
			c.Waiting = n
		case tidemill.RunRunning, tidemill.RunResting, tidemill.RunSettling:
			c.Live += n
		}
		all[recipe] = c
	}
	return all, nil
}

// number reads one that was written by us.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
