package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// place is a hash and a field of it that has the state of a making or a model.
type place struct{ hash, member string }

// The hashes of makings, which facts of runs are folded into, and of models.
const (
	hashMakings = "makings"
	hashModels  = "models"
)

// load reads the makings and models that the facts are about.
func (l *Ledger) load(ctx context.Context, parts []*batchPart) error {
	makings, models := loadSet[fold.Making, folding]{open: foldingOf}, loadSet[fold.Model, modelFolding]{open: modelFoldingOf}
	partitions := make([]int32, len(parts))
	for i, p := range parts {
		partitions[i] = p.partition
		s := l.cache(p.partition)
		if s.unwritten == nil {
			from := l.progress.reached(p.partition)
			s.unwritten = &unwritten{partition: p.partition, from: from, next: from, makings: map[string]*folding{}, models: map[string]*modelFolding{}}
		}
		for i := range p.facts {
			if f := &p.facts[i]; f.Model != "" {
				models.lookUp(f.Model, s.unwritten.models, &s.models, l.kept)
			} else {
				makings.lookUp(tidemill.RunKey(f.Recipe, f.Key), s.unwritten.makings, &s.makings, l.kept)
			}
		}
	}
	if len(makings.members)+len(models.members) == 0 {
		return nil
	}
	seen, at, found, err := readStates(ctx, l.client, l.prefix, partitions, makings.members, models.members)
	if err != nil {
		return fmt.Errorf("read %d makings and %d models from redis: %w", len(makings.members), len(models.members), err)
	}
	if least, _ := l.progress.known(); !seen.isIntact(least) { // known fails while it catches up
		return cmp.Or(l.check(ctx), errForgotten)
	}
	for i, p := range parts {
		if at[i] != strconv.FormatInt(l.progress.reached(p.partition), 10) {
			return l.checkOffsets(partitions, at)
		}
	}
	if err := makings.fill(found[0], l.kept); err != nil {
		return err
	}
	return models.fill(found[1], l.kept)
}

// loadSet collects the makings or models to be loaded that are not in the caches.
type loadSet[T, F any] struct {
	open    func(member string, of *T) *F
	members []string
	into    []map[string]*F
	caches  []*cache[T]
}

// lookUp takes a making or model from its cache, or notes that Redis must be asked for it.
func (w *loadSet[T, F]) lookUp(member string, into map[string]*F, s *cache[T], kept int) {
	if _, is := into[member]; is {
		return
	}
	if v := s.get(member, kept); v != nil {
		into[member] = w.open(member, v)
		return
	}
	into[member] = nil // a second fact does not ask for it again
	w.members, w.into, w.caches = append(w.members, member), append(w.into, into), append(w.caches, s)
}

func (w *loadSet[T, F]) fill(found []any, kept int) error {
	for i, text := range found {
		v, err := decode[T](w.members[i], text)
		if err != nil {
			return err
		}
		w.into[i][w.members[i]] = w.open(w.members[i], v)
		w.caches[i].put(w.members[i], v, kept)
	}
	return nil
}

// decode reads a value from Redis. If Redis has none, the result is an empty T.
func decode[T any](member string, held any) (*T, error) {
	v := new(T)
	if text, ok := held.(string); ok {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			return nil, fmt.Errorf("read what redis holds of %s: %w", member, err)
		}
	}
	return v, nil
}

// readStates reads makings and models, and the next offsets of partitions, at one moment.
func readStates(ctx context.Context, client *redis.Client, prefix string, partitions []int32, makings, models []string) (seen *glance, at []string, found [2][]any, err error) {
	fields := make([]string, len(partitions))
	for i, p := range partitions {
		fields[i] = strconv.Itoa(int(p))
	}
	var places *redis.SliceCmd
	var states [2]*redis.SliceCmd
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		seen = glanceAt(ctx, pipe, prefix)
		places = pipe.HMGet(ctx, prefix+"at", fields...)
		if len(makings) > 0 {
			states[0] = pipe.HMGet(ctx, prefix+hashMakings, makings...)
		}
		if len(models) > 0 {
			states[1] = pipe.HMGet(ctx, prefix+hashModels, models...)
		}
		return nil
	})
	if err != nil {
		return nil, nil, found, err
	}
	for _, v := range places.Val() {
		next, ok := v.(string)
		if !ok {
			next = "0"
		}
		at = append(at, next)
	}
	for i, s := range states {
		if s != nil {
			found[i] = s.Val()
		}
	}
	return seen, at, found, nil
}

// readState reads one making or model, nil if there is none, and the next offset of its partition.
func readState(ctx context.Context, client *redis.Client, prefix string, partition int32, of place) (seen *glance, next int64, state []byte, err error) {
	var at, held *redis.SliceCmd
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		at = pipe.HMGet(ctx, prefix+"at", strconv.Itoa(int(partition)))
		seen = glanceAt(ctx, pipe, prefix)
		held = pipe.HMGet(ctx, prefix+of.hash, of.member)
		return nil
	})
	if err != nil {
		return nil, 0, nil, err
	}
	if text, ok := at.Val()[0].(string); ok {
		next = parseNumber(text)
	}
	if text, ok := held.Val()[0].(string); ok {
		state = []byte(text)
	}
	return seen, next, state, nil
}

// caches keep makings and models of one partition in memory, and its unwritten changes.
type caches struct {
	makings   cache[fold.Making]
	models    cache[fold.Model]
	unwritten *unwritten // nil if Redis has all
}

func (s *caches) clear() {
	s.makings.clear()
	s.models.clear()
	s.unwritten = nil
}

// cache keeps some makings or models of one partition. Each making or model has the state after the
// last applied fact. Only the facts decide this state, so the cache stays valid even if Redis is
// flushed. It becomes invalid when another process applies facts of the partition.
type cache[T any] struct {
	young, old map[string]*T
}

// get returns a making or model from the cache; nil if it is not there. If it is known that
// there are no facts about it yet, it is an empty T.
func (s *cache[T]) get(member string, kept int) *T {
	if m := s.young[member]; m != nil {
		return m
	}
	m := s.old[member]
	if m != nil {
		s.put(member, m, kept)
	}
	return m
}

// put adds a making or model. The cache keeps the values that were used last: at least as many as
// kept, and at most twice as many.
func (s *cache[T]) put(member string, m *T, kept int) {
	if len(s.young) >= kept {
		s.young, s.old = nil, s.young
	}
	if s.young == nil {
		s.young = map[string]*T{}
	}
	s.young[member] = m
}

func (s *cache[T]) clear() { s.young, s.old = nil, nil }
