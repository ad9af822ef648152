package ledger

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// register is this process's copy of the list of all models. Redis keeps the entries of each
// partition in a hash, and the offset at which they changed last. Only the log decides the
// entries at an offset. So entries that were read once are valid while the offset is the
// same, even if Redis was flushed since.
type register struct {
	turn  chan struct{} // lock of the reader
	stale atomic.Bool   // whether the stream may have been created again

	at      map[string]string // partition → offset at which its entries changed last
	entries []entry           // entries by name; the slice is replaced, never changed
}

func newRegister() *register {
	return &register{turn: make(chan struct{}, 1)}
}

// entry has the parts of a model that the list needs.
type entry struct {
	name, recipe, key string
	began             int64 // start of the champion's run, in ms; 0 if there is no champion
	awaiting, pinned  bool
	partition         string
}

// entryOf returns a model's entry; false if it has no versions and is not listed.
func entryOf(m *fold.Model) (entry, bool) {
	e := entry{name: m.Name, recipe: m.Recipe, key: m.Key, pinned: m.Pin != nil}
	e.awaiting = slices.ContainsFunc(m.Versions, func(h fold.Held) bool { return h.State == tidemill.VersionAwaiting })
	if c := m.Find(m.Champion); c != nil {
		e.began = max(c.Began.UnixMilli(), 1)
	}
	return e, len(m.Versions) > 0
}

// value returns an entry as it is stored in Redis, without its name.
func (e *entry) value() string {
	flags := "-"
	if e.awaiting {
		flags += "a"
	}
	if e.pinned {
		flags += "p"
	}
	return strconv.FormatInt(e.began, 10) + " " + flags + " " + url.QueryEscape(e.recipe) + " " + e.key
}

func parseEntry(partition, name, value string) entry {
	began, value, _ := strings.Cut(value, " ")
	flags, value, _ := strings.Cut(value, " ")
	recipe, key, _ := strings.Cut(value, " ")
	if plain, err := url.QueryUnescape(recipe); err == nil { // always, because value wrote it
		recipe = plain
	}
	return entry{name: name, recipe: recipe, key: key, began: parseNumber(began), partition: partition,
		awaiting: strings.Contains(flags, "a"), pinned: strings.Contains(flags, "p")}
}

// allEntries returns the entries by name. The caller must not change the slice.
func (r *register) allEntries(ctx context.Context, l *Ledger) ([]entry, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.stale.Swap(false) {
		r.at, r.entries = nil, nil
	}
	var listed *redis.MapStringStringCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { listed = pipe.HGetAll(ctx, l.key(hashListed)) }); err != nil {
		return nil, err
	}
	changed := changedIn(r.at, listed.Val())
	if len(changed) == 0 {
		return r.entries, nil
	}
	least, err := l.progress.known()
	if err != nil {
		return nil, err
	}
	entries := make([]*redis.MapStringStringCmd, len(changed))
	var lengths *redis.MapStringStringCmd
	err = l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		listed, lengths = pipe.HGetAll(ctx, l.key(hashListed)), pipe.HGetAll(ctx, l.key(hashLengths))
		for i, p := range changed {
			entries[i] = pipe.HGetAll(ctx, l.key(hashEntries+p))
		}
	})
	if err != nil {
		return nil, err
	}
	for i, p := range changed {
		if int64(len(entries[i].Val())) != parseNumber(lengths.Val()[hashEntries+p]) {
			return nil, l.reportLost(ctx, least)
		}
	}
	r.replaceEntries(changed, listed.Val(), entries)
	return r.entries, nil
}

// replaceEntries replaces the entries of some partitions.
func (r *register) replaceEntries(changed []string, listed map[string]string, read []*redis.MapStringStringCmd) {
	at, fresh := maps.Clone(r.at), []entry{}
	if at == nil {
		at = map[string]string{}
	}
	for i, p := range changed {
		at[p] = listed[p]
		for name, value := range read[i].Val() {
			fresh = append(fresh, parseEntry(p, name, value))
		}
	}
	slices.SortFunc(fresh, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	r.at, r.entries = at, mergeEntries(r.entries, fresh, changed)
}

// mergeEntries replaces the entries of some partitions with fresh ones.
func mergeEntries(old, fresh []entry, changed []string) []entry {
	gone := make(map[string]bool, len(changed))
	for _, p := range changed {
		gone[p] = true
	}
	all := make([]entry, 0, len(old)+len(fresh))
	for _, e := range old {
		if gone[e.partition] {
			continue
		}
		for len(fresh) > 0 && fresh[0].name < e.name {
			all, fresh = append(all, fresh[0]), fresh[1:]
		}
		all = append(all, e)
	}
	return append(all, fresh...)
}

// changedIn returns the partitions whose offsets differ.
func changedIn(was, is map[string]string) (partitions []string) {
	for p, at := range is {
		if was[p] != at {
			partitions = append(partitions, p)
		}
	}
	for p := range was {
		if _, still := is[p]; !still {
			partitions = append(partitions, p)
		}
	}
	return partitions
}
