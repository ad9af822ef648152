package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The kinds of things that links lead from and to.
const (
	kindEvent  = "event"
	kindCommit = "commit"
	kindRun    = "run"
	kindModel  = "model"
)

// Links are what came of a thing, as far as the ledger names it: of event/ID or
// commit/ID, runs as run/ID; of run/ID, commit/ID and the version model/NAME@N.
// The newest 256 are known, and come first. Of the events that asked for a run it
// knows the first and the newest.
func (l *Ledger) Links(ctx context.Context, from string) ([]string, error) {
	all, err := l.LinksOf(ctx, []string{from})
	return all[from], err
}

// LinksOf are the Links of several things, by their names.
func (l *Ledger) LinksOf(ctx context.Context, from []string) (map[string][]string, error) {
	if len(from) == 0 {
		return nil, nil
	}
	ids, ends := make([]string, len(from)), make([]string, len(from))
	for i, name := range from {
		kind, id, _ := strings.Cut(name, "/")
		ids[i], ends[i] = id, linkEnd(kind, id)
	}
	var linked, values *redis.SliceCmd
	err := l.consistent(ctx, func(pipe redis.Pipeliner) {
		linked, values = pipe.HMGet(ctx, l.key("links"), ends...), pipe.HMGet(ctx, l.key("runs"), ids...)
	})
	if err != nil {
		return nil, fmt.Errorf("look up what came of %s: %w", from[0], err)
	}
	all := make(map[string][]string, len(from))
	for i, name := range from {
		ends, _ := linked.Val()[i].(string)
		value, _ := values.Val()[i].(string)
		if all[name], err = cameOf(name, ends, value); err != nil {
			return nil, fmt.Errorf("look up what came of %s: %w", name, err)
		}
	}
	return all, nil
}

// cameOf are the links of a thing, from what Redis has of it.
func cameOf(name, ends, value string) (all []string, err error) {
	to := kindRun
	if strings.HasPrefix(name, kindRun+"/") {
		to = kindModel
		if all, err = commitOf(value); err != nil {
			return nil, err
		}
	}
	for _, end := range slices.Backward(strings.Fields(ends)) {
		all = append(all, to+"/"+end)
	}
	return all, nil
}

// commitOf is what a run that has ended put on its dataset.
func commitOf(value string) ([]string, error) {
	whole := behindWords(value, valueWords)
	if !strings.HasPrefix(whole, "{") {
		return nil, nil
	}
	var r struct {
		Commit string `json:"commit"`
	}
	if err := json.Unmarshal([]byte(whole), &r); err != nil || r.Commit == "" {
		return nil, err
	}
	return []string{kindCommit + "/" + r.Commit}, nil
}
