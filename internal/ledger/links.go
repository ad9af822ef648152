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
	kind, id, _ := strings.Cut(from, "/")
	var ends, value *redis.StringCmd
	err := l.consistent(ctx, func(pipe redis.Pipeliner) {
		ends = pipe.HGet(ctx, l.key("links"), linkEnd(kind, id))
		value = pipe.HGet(ctx, l.key("runs"), id)
	})
	if err != nil {
		return nil, fmt.Errorf("look up what came of %s: %w", from, err)
	}
	to, all := kindRun, []string{}
	if kind == kindRun {
		to = kindModel
		if all, err = commitOf(value.Val()); err != nil {
			return nil, fmt.Errorf("look up what came of %s: %w", from, err)
		}
	}
	for _, end := range slices.Backward(strings.Fields(ends.Val())) {
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
