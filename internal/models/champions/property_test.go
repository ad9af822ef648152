package champions

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"tidemill.dev/broker"
)

// turnPositions holds the position after which each turn of each model began.
type turnPositions struct {
	mu sync.Mutex
	at map[string]map[int64]broker.Position
}

func (b *turnPositions) note(name string, turn int64, at broker.Position) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at[name] == nil {
		b.at[name] = map[int64]broker.Position{}
	}
	if _, known := b.at[name][turn]; !known {
		b.at[name][turn] = broker.Position{Partition: at.Partition, Offset: at.Offset + 1}
	}
}

// seenChampion is a champion that a reader has read from a table, and the table's places at that
// time.
type seenChampion struct {
	name   string
	now    Champion
	places []int64
}

// watch reads tables while facts come. No turn goes back, and a table that has reached the places
// of another is as new as that one.
func (w *world) watch(ctx context.Context, r *rand.Rand, tables []*Table, models int) (all []seenChampion) {
	last := make([]map[string]int64, len(tables))
	for ctx.Err() == nil {
		i := r.IntN(len(tables))
		_, changed := tables[i].progress.covers([]int64{math.MaxInt64})
		name := fmt.Sprint("intent/bot-", r.IntN(models))
		now, _ := tables[i].Champion(name)
		s := seenChampion{name, now, tables[i].Places()}
		if last[i] == nil {
			last[i] = map[string]int64{}
		}
		if now.Turn < last[i][name] && now.Version != 0 {
			w.Errorf("%s goes back from turn %d to %d", name, last[i][name], now.Turn)
		}
		if now.Version == 0 || now.Turn == last[i][name] {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		last[i][name] = now.Turn
		all = append(all, s)
		other := tables[r.IntN(len(tables))]
		if err := other.Reached(ctx, s.places); err != nil {
			if ctx.Err() == nil {
				w.Error(err)
			}
			return all
		}
		if then, _ := other.Champion(name); then.Version != 0 && then.Turn < now.Turn {
			w.Errorf("%s is at turn %d where turn %d was seen at %v", name, then.Turn, now.Turn, s.places)
		}
	}
	return all
}

// The table equals one fold of the log, however facts come, wherever the table begins, and whenever
// Redis is flushed. Its champions are never newer than its places.
func TestTheTableIsTheFold(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			round(newWorld(t, 1+int(seed%3)), seed, 400)
		})
	}
}

func round(w *world, seed uint64, facts int) {
	c, born := newChance(seed), &turnPositions{at: map[string]map[int64]broker.Position{}}
	told, o := &changes{of: map[string]Champion{}}, w.options()
	o.Changed = told.take
	tables := []*Table{w.open(o)}
	watching, stop := context.WithCancel(w.ctx())
	defer stop()
	var looked [][]seenChampion
	var mu sync.Mutex
	var readers sync.WaitGroup
	read := func() {
		r, some := rand.New(rand.NewPCG(seed, uint64(len(tables)))), append([]*Table(nil), tables...)
		readers.Go(func() {
			all := w.watch(watching, r, some, c.names)
			mu.Lock()
			defer mu.Unlock()
			looked = append(looked, all)
		})
	}
	for n := range facts {
		v := c.view()
		at := w.publish(v)
		if m := c.fold(v, at); m != nil {
			born.note(m.Name, m.Turn, at)
		}
		switch {
		case c.IntN(40) == 0:
			w.must(w.redis.FlushAll(w.ctx()).Err())
		case n%150 == 75:
			tables = append(tables, w.open(w.options()))
			read()
		}
	}
	for _, t := range tables {
		w.must(t.Reached(w.ctx(), w.endPlaces()))
	}
	stop()
	readers.Wait()
	w.ledgerKnows(c)
	for i, t := range tables {
		w.sameAs(fmt.Sprint("table ", i), t, c)
		w.must(t.Err())
	}
	told.sameAs(w, c)
	born.neverAhead(w, looked)
}

// neverAhead checks that no champion was seen with places before its turn.
func (b *turnPositions) neverAhead(w *world, looked [][]seenChampion) {
	n := 0
	for _, all := range looked {
		for _, s := range all {
			n++
			at := b.at[s.name][s.now.Turn]
			if int(at.Partition) >= len(s.places) || s.places[at.Partition] < at.Offset {
				w.Errorf("turn %d of %s is told at %v, and begins at %d/%d", s.now.Turn, s.name, s.places, at.Partition, at.Offset)
			}
		}
	}
	w.Logf("%d champions were seen", n)
}

// ledgerKnows waits until the ledger has folded all models, because tables look artifacts up there.
func (w *world) ledgerKnows(c *chance) {
	w.Helper()
	l := w.options().Ledger
	for name, want := range c.models {
		for ctx := w.ctx(); ; {
			changed := l.Changed()
			if m, err := l.Model(ctx, name); err == nil && m.Next >= want.Next {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				w.Fatalf("the ledger does not know all of %s", name)
			}
		}
	}
}

// sameAs compares a table, with its artifacts, with the fold.
func (w *world) sameAs(what string, t *Table, c *chance) {
	w.Helper()
	for name, m := range c.models {
		got, ok := t.Champion(name)
		want := Champion{Version: m.Champion, Previous: m.Previous, Turn: m.Turn, Key: m.Key, Artifact: got.Artifact, Unserved: m.Unserved != nil}
		if m.Champion == 0 {
			want = Champion{}
		}
		if got != want || ok != (m.Champion != 0) {
			w.Errorf("%s: %s has the champion %+v, want %+v", what, name, got, want)
		}
		for _, h := range m.Versions {
			files, err := t.Artifact(w.ctx(), name, h.Number)
			if w.must(err); files != h.Run+" of "+name {
				w.Errorf("%s: version %d of %s, of %s, has the files %q", what, h.Number, name, h.Run, files)
			}
		}
	}
}

// changes holds the champions that Changed was called with.
type changes struct {
	mu   sync.Mutex
	of   map[string]Champion
	all  int
	same int
}

func (c *changes) take(model string, now Champion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all++
	if c.of[model].Version == now.Version {
		c.same++
	}
	c.of[model] = now
}

// sameAs checks that a listener from the beginning knows all champions, and got no change twice.
func (c *changes) sameAs(w *world, of *chance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, m := range of.models {
		if c.of[name].Version != m.Champion {
			w.Errorf("told last of version %d of %s, want %d", c.of[name].Version, name, m.Champion)
		}
	}
	if c.all == 0 || c.same > 0 {
		w.Errorf("%d changes were told, %d of them were none", c.all, c.same)
	}
}
