package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// reportLost marks Redis as incomplete, because a read has found that a key is lost.
func (l *Ledger) reportLost(ctx context.Context, least known) error {
	if err := scriptLost.Run(ctx, l.o.Redis, []string{l.key("at")}, l.prefix, least.fill).Err(); err != nil {
		return fmt.Errorf("mark redis as incomplete: %w", err)
	}
	return l.recheckNow()
}

// recheckNow makes the ledger check at once whether Redis has forgotten facts. Until it has
// checked, reads fail with ErrCatchingUp.
func (l *Ledger) recheckNow() error {
	l.progress.setCaught(false)
	l.recheck.request()
	return ErrCatchingUp
}

// readConsistent reads at one moment. It fails if Redis does not have all facts that this
// process knows of.
func (l *Ledger) readConsistent(ctx context.Context, ask func(redis.Pipeliner)) error {
	least, err := l.progress.known()
	if err != nil {
		return err
	}
	var at *glance
	done, err := l.o.Redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		at = glanceAt(ctx, pipe, l.prefix)
		ask(pipe)
		return nil
	})
	if err == redis.Nil { // an absent field is not an error
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
	case !at.isCurrent(least):
		return l.recheckNow()
	}
	return nil
}

// parseStates reads makings or models. The result has an empty T for one that is not known.
func parseStates[T any](ctx context.Context, l *Ledger, hash string, members []string) ([]*T, error) {
	if len(members) == 0 {
		return nil, nil
	}
	var values *redis.SliceCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key(hash), members...) }); err != nil {
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

// Making returns the making of a recipe and key; an empty one if it is not known.
func (l *Ledger) Making(ctx context.Context, recipe, key string) (*fold.Making, error) {
	all, err := parseStates[fold.Making](ctx, l, hashMakings, []string{tidemill.RunKey(recipe, key)})
	if err != nil {
		return nil, fmt.Errorf("look up what recipe %s makes for key %s: %w", recipe, key, err)
	}
	if all[0].Next == 0 {
		all[0].Recipe, all[0].Key = recipe, key
	}
	return all[0], nil
}

// Run finds a run by its id. The run may be live, wait, or be one of the newest that ended.
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

// Keys calls fn with each key that the recipe was asked for and that has not been removed,
// in no order, until fn returns false.
func (l *Ledger) Keys(ctx context.Context, recipe string, fn func(key string) bool) error {
	const some = 1000
	var cursor uint64
	for {
		var scan *redis.ScanCmd
		var size *redis.IntCmd
		var count *redis.SliceCmd
		least, err := l.progress.known()
		if err == nil {
			err = l.readConsistent(ctx, func(pipe redis.Pipeliner) {
				size, count = pipe.SCard(ctx, l.key("keys:"+recipe)), pipe.HMGet(ctx, l.key("counts"), recipe+"/keys")
				scan = pipe.SScan(ctx, l.key("keys:"+recipe), cursor, "", some)
			})
		}
		if err == nil && size.Val() != numberIn(count.Val()[0]) {
			err = l.reportLost(ctx, least)
		}
		if err != nil {
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

// Counts are the numbers of keys and runs of one recipe.
type Counts struct{ Keys, Waiting, Live int }

// Counts returns the Counts of each recipe.
func (l *Ledger) Counts(ctx context.Context) (map[string]Counts, error) {
	var fields *redis.MapStringStringCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { fields = pipe.HGetAll(ctx, l.key("counts")) }); err != nil {
		return nil, fmt.Errorf("count the runs: %w", err)
	}
	all := map[string]Counts{}
	for name, text := range fields.Val() {
		recipe, what, _ := strings.Cut(name, "/")
		c, n := all[recipe], int(parseNumber(text))
		switch tidemill.RunState(what) {
		case "keys":
			c.Keys = n
		case tidemill.RunWaiting:
			c.Waiting = n
		case tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting:
			c.Live += n
		}
		all[recipe] = c
	}
	return all, nil
}

// numberIn returns the number in a field of a hash, 0 if the field is absent.
func numberIn(field any) int64 {
	text, _ := field.(string)
	return parseNumber(text)
}

// parseNumber parses a number that the ledger has written.
func parseNumber(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// triesOfRun is greater than the number of times that a run can move during a search.
const triesOfRun = 10

// RunsOf finds runs by their ids, as Run does. It leaves out runs that are not known.
func (l *Ledger) RunsOf(ctx context.Context, ids []string) (map[string]*tidemill.Run, error) {
	all := make(map[string]*tidemill.Run, len(ids))
	for range triesOfRun {
		if len(ids) == 0 {
			return all, nil
		}
		var err error
		if ids, err = l.findRuns(ctx, ids, all); err != nil {
			return nil, fmt.Errorf("look up runs: %w", err)
		}
	}
	if len(ids) == 0 {
		return all, nil
	}
	return nil, fmt.Errorf("look up run %s: it moves too fast; ask again", ids[0])
}

// findRuns reads runs from the hash runs, or from their makings. It returns the ids of runs
// that have ended between the two reads: a further call finds them in the hash.
func (l *Ledger) findRuns(ctx context.Context, ids []string, into map[string]*tidemill.Run) (moved []string, err error) {
	var values *redis.SliceCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key("runs"), ids...) }); err != nil {
		return nil, err
	}
	var in, members []string // ids of runs, and the makings that contain them
	for i, id := range ids {
		value, _ := values.Val()[i].(string)
		place := afterWords(value, valueWords)
		if strings.HasPrefix(place, "{") {
			if into[id], err = decodeRun(id, place); err != nil {
				return nil, err
			}
		} else if place != "" {
			in, members = append(in, id), append(members, place)
		}
	}
	makings, err := parseStates[fold.Making](ctx, l, hashMakings, members)
	for i, m := range makings {
		if r := m.Find(in[i]); r != nil {
			into[in[i]] = r
		} else {
			moved = append(moved, in[i])
		}
	}
	return moved, err
}

// ErrAmbiguous says that several ids of runs have the same beginning.
var ErrAmbiguous = errors.New("more than one run's id begins so")

// wholeID is the length of every id. A beginning is shorter.
const wholeID = 26

// Find is like Run, with only the beginning of an id. It searches all ids, so it is meant
// for single requests of people.
func (l *Ledger) Find(ctx context.Context, beginning string) (*tidemill.Run, error) {
	if len(beginning) >= wholeID {
		return l.Run(ctx, beginning)
	}
	ids, err := l.idsBeginning(ctx, beginning)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up run %s: %w", beginning, err)
	case len(ids) == 0:
		return nil, fmt.Errorf("look up run %s: %w", beginning, ErrUnknown)
	case len(ids) > 1:
		return nil, fmt.Errorf("look up run %s: %w; give more of it", beginning, ErrAmbiguous) // without ids, because the caller may not see these runs
	}
	return l.Run(ctx, ids[0])
}

// idsBeginning returns up to two ids with a beginning.
func (l *Ledger) idsBeginning(ctx context.Context, beginning string) (ids []string, err error) {
	if strings.ContainsFunc(beginning, func(r rune) bool { return r < '2' || r > '7' && r < 'a' || r > 'z' }) {
		return nil, nil // no id has such a letter; it may have a meaning in Redis's patterns
	}
	const some = 10_000
	for cursor := uint64(0); ; {
		var scan *redis.ScanCmd
		if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) {
			scan = pipe.HScan(ctx, l.key("runs"), cursor, beginning+"*", some)
		}); err != nil {
			return nil, err
		}
		found, next := scan.Val()
		for i := 0; i < len(found); i += 2 { // pairs of a field and its value
			id := found[i]
			if len(ids) == 0 || len(ids) == 1 && ids[0] != id { // a scan may return a field twice
				ids = append(ids, id)
			}
		}
		if cursor = next; cursor == 0 || len(ids) > 1 {
			return ids, nil
		}
	}
}
