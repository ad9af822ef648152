package ledger

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// triesOfRun is more often than a run can move while it is looked for.
const triesOfRun = 10

// RunsOf finds runs by their ids, as Run does one. Those that are not known are
// left out.
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

// findRuns finds runs where they are, and returns the ids of those that have ended
// between the two questions: they are found where they are now.
func (l *Ledger) findRuns(ctx context.Context, ids []string, into map[string]*tidemill.Run) (moved []string, err error) {
	var values *redis.SliceCmd
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key("runs"), ids...) }); err != nil {
		return nil, err
	}
	var in, members []string // runs, and the makings that they are in
	for i, id := range ids {
		value, _ := values.Val()[i].(string)
		place := behindWords(value, valueWords)
		if strings.HasPrefix(place, "{") {
			if into[id], err = decodeRun(id, place); err != nil {
				return nil, err
			}
		} else if place != "" {
			in, members = append(in, id), append(members, place)
		}
	}
	makings, err := states[tidemill.Making](ctx, l, hashMakings, members)
	for i, m := range makings {
		if r := m.Find(in[i]); r != nil {
			into[in[i]] = r
		} else {
			moved = append(moved, in[i])
		}
	}
	return moved, err
}
