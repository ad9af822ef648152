package ledger

import (
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

// register is this process's copy of a list: of all models, or of all keys of recipes. Redis
// keeps the entries of each partition in a hash, and the offset at which they changed last. Only
// the log decides the entries at an offset. So entries that were read once are valid while the
// offset is the same, even if Redis was flushed since.
type register[E listEntry] struct {
	stamps string                                // hash of the offsets
	hashes string                                // prefix of the hashes of entries, before the partition
	parse  func(partition, name, value string) E // reads an entry as Redis has it

	turn  chan struct{} // lock of the reader
	stale atomic.Bool   // whether the stream may have been created again

	at      map[string]string // partition → offset at which its entries changed last
	version string            // text that is the same while at is the same
	entries []E               // entries by name; the slice is replaced, never changed
}

// listEntry is an entry of a register.
type listEntry interface {
	id() (name, partition string)
}

func newRegister[E listEntry](stamps, hashes string, parse func(partition, name, value string) E) *register[E] {
	return &register[E]{stamps: stamps, hashes: hashes, parse: parse, turn: make(chan struct{}, 1)}
}

// entry has the parts of a model that the lists need. Its times are in Unix milliseconds.
type entry struct {
	name, recipe, key string
	partition         string
	began             int64                 // start of the champion's run; 0 if there is no champion
	registered        int64                 // time of the newest version's registration
	touched           int64                 // time of the newest change by a person; 0 if there is none
	tried             int64                 // time of the newest end of a trial; 0 if there is none
	champion, newest  int32                 // numbers of versions; champion is 0 if there is none
	state             tidemill.VersionState // state of the newest version
	awaiting, pinned  bool
	unserved          bool // whether a scorer reports that it cannot serve the champion
	drifted           bool // whether a figure of the champion has drifted
}

func (e entry) id() (name, partition string) { return e.name, e.partition }

// entryOf returns a model's entry; false if it has no versions and is not listed.
func entryOf(m *fold.Model) (entry, bool) {
	if len(m.Versions) == 0 {
		return entry{}, false
	}
	newest := m.Versions[len(m.Versions)-1]
	e := entry{name: m.Name, recipe: m.Recipe, key: m.Key, pinned: m.Pin != nil, unserved: m.Unserved != nil, drifted: len(m.Drifts) > 0,
		champion: int32(m.Champion), newest: int32(newest.Number), registered: newest.At.UnixMilli(), state: newest.State}
	e.awaiting = slices.ContainsFunc(m.Versions, func(h fold.Held) bool { return h.State == tidemill.VersionAwaiting })
	if c := m.Find(m.Champion); c != nil {
		e.began = max(c.Began.UnixMilli(), 1)
	}
	for _, c := range changesByPeople(m) {
		e.touched = max(e.touched, c.At.UnixMilli())
	}
	if n := len(m.Trials); n > 0 {
		e.tried = m.Trials[n-1].At.UnixMilli()
	}
	return e, true
}

// value returns an entry as it is stored in Redis, without its name.
func (e *entry) value() string {
	v := append(strconv.AppendInt(make([]byte, 0, 96), e.began, 10), " -"...)
	for i, set := range [...]bool{e.awaiting, e.pinned, e.unserved, e.drifted} {
		if set {
			v = append(v, "apud"[i])
		}
	}
	v = append(append(append(v, ' '), e.state...), ' ')
	for _, n := range [...]int64{int64(e.champion), int64(e.newest), e.registered, e.touched, e.tried} {
		v = append(strconv.AppendInt(v, n, 10), ' ')
	}
	return string(v) + url.QueryEscape(e.recipe) + " " + e.key
}

func parseEntry(partition, name, value string) entry {
	var words [10]string
	for i := range words[1:] {
		words[i], value, _ = strings.Cut(value, " ")
	}
	words[9] = value // the key may have spaces
	flags, recipe := words[1], words[8]
	if plain, err := url.QueryUnescape(recipe); err == nil { // always, because value wrote it
		recipe = plain
	}
	return entry{name: name, recipe: recipe, key: words[9], partition: partition, began: parseNumber(words[0]), registered: parseNumber(words[5]), touched: parseNumber(words[6]), tried: parseNumber(words[7]),
		champion: int32(parseNumber(words[3])), newest: int32(parseNumber(words[4])), state: tidemill.VersionState(words[2]),
		awaiting: strings.Contains(flags, "a"), pinned: strings.Contains(flags, "p"), unserved: strings.Contains(flags, "u"), drifted: strings.Contains(flags, "d")}
}

// keyEntry has the parts of a making that the list of keys needs.
type keyEntry struct {
	name, partition string            // name is recipe/key
	last            tidemill.RunState // state of the newest run that has ended; empty if there is none
	ended           int64             // time of that run's end, in Unix milliseconds
	running         bool              // whether a run is live or waits
}

func (e keyEntry) id() (name, partition string) { return e.name, e.partition }

// keyEntryOf returns the entry of a making without its name. Only the end of a failed run has a
// time, so that a success after a success changes no entry.
func keyEntryOf(m *fold.Making) keyEntry {
	e := keyEntry{running: m.Live != nil || m.Waiting != nil}
	if m.Last != nil {
		e.last = m.Last.State
		if e.last == tidemill.RunFailed {
			e.ended = m.Last.At
		}
	}
	return e
}

// value returns an entry as it is stored in Redis, without its name.
func (e keyEntry) value() string {
	flag := "- "
	if e.running {
		flag = "r "
	}
	return flag + string(e.last) + " " + strconv.FormatInt(e.ended, 10)
}

func parseKeyEntry(partition, name, value string) keyEntry {
	flag, value, _ := strings.Cut(value, " ")
	last, ended, _ := strings.Cut(value, " ")
	e := keyEntry{name: name, partition: partition, ended: parseNumber(ended), running: flag == "r"}
	for _, state := range [...]tidemill.RunState{tidemill.RunSucceeded, tidemill.RunFailed, tidemill.RunCancelled} {
		if string(state) == last {
			e.last = state // a constant does not keep the value in memory
		}
	}
	return e
}

// allEntries returns the entries by name, and a text that is the same while they are the same.
// The caller must not change the slice.
func (r *register[E]) allEntries(ctx context.Context, l *Ledger) (all []E, version string, err error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, "", context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.stale.Swap(false) {
		r.at, r.entries, r.version = nil, nil, ""
	}
	var listed *redis.MapStringStringCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { listed = pipe.HGetAll(ctx, l.key(r.stamps)) }); err != nil {
		return nil, "", err
	}
	if changed := changedIn(r.at, listed.Val()); len(changed) > 0 {
		if err := r.read(ctx, l, changed); err != nil {
			return nil, "", err
		}
	}
	return r.entries, r.version, nil
}

// read reads the entries of the partitions that have changed.
func (r *register[E]) read(ctx context.Context, l *Ledger, changed []string) error {
	least, err := l.progress.known()
	if err != nil {
		return err
	}
	entries := make([]*redis.MapStringStringCmd, len(changed))
	var listed, lengths *redis.MapStringStringCmd
	err = l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		listed, lengths = pipe.HGetAll(ctx, l.key(r.stamps)), pipe.HGetAll(ctx, l.key(hashLengths))
		for i, p := range changed {
			entries[i] = pipe.HGetAll(ctx, l.key(r.hashes+p))
		}
	})
	if err != nil {
		return err
	}
	for i, p := range changed {
		if int64(len(entries[i].Val())) != parseNumber(lengths.Val()[r.hashes+p]) {
			return l.reportLost(ctx, least)
		}
	}
	r.replaceEntries(changed, listed.Val(), entries)
	return nil
}

// replaceEntries replaces the entries of some partitions.
func (r *register[E]) replaceEntries(changed []string, listed map[string]string, read []*redis.MapStringStringCmd) {
	at := maps.Clone(r.at)
	if at == nil {
		at = map[string]string{}
	}
	type text struct{ partition, name, value string }
	var texts []text // sorted before they are parsed, because they are smaller
	for i, p := range changed {
		at[p] = listed[p]
		for name, value := range read[i].Val() {
			texts = append(texts, text{p, name, value})
		}
	}
	slices.SortFunc(texts, func(a, b text) int { return strings.Compare(a.name, b.name) })
	fresh := make([]E, len(texts))
	for i, t := range texts {
		fresh[i] = r.parse(t.partition, t.name, t.value)
	}
	r.at, r.entries, r.version = at, mergeEntries(r.entries, fresh, changed), ""
	for _, p := range slices.Sorted(maps.Keys(at)) {
		r.version += p + "=" + at[p] + " "
	}
}

func nameOf[E listEntry](e E) string {
	name, _ := e.id()
	return name
}

// mergeEntries replaces the entries of some partitions with fresh ones.
func mergeEntries[E listEntry](old, fresh []E, changed []string) []E {
	gone := make(map[string]bool, len(changed))
	for _, p := range changed {
		gone[p] = true
	}
	all := make([]E, 0, len(old)+len(fresh))
	for _, e := range old {
		name, partition := e.id()
		if gone[partition] {
			continue
		}
		for len(fresh) > 0 && nameOf(fresh[0]) < name {
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
