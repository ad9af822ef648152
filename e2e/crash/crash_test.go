//go:build slow

package crash

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/internal/data/store"
)

func openStore(ctx context.Context, r *round) (*store.Store, error) {
	return store.Open(ctx, store.Options{URL: r.store()})
}

// TestCrash stops a process at writes that a fixed seed chooses, ten of all
// there are; TIDEMILL_CRASH_POINTS=all is all of them, and a number as many.
// The race detector makes a round several times as dear, and looks for other
// things: one write to each server suffices it, and `make chaos` plays the ten.
func TestCrash(t *testing.T) {
	all := points(count(t))
	few := 10
	if testing.Short() {
		few = 4
	}
	if raceDetector {
		few = len(servers)
	}
	seed, some := number(t, "TIDEMILL_CHAOS_SEED", 1, len(all)), number(t, "TIDEMILL_CRASH_POINTS", few, len(all))
	if some < len(all) {
		rand.New(rand.NewPCG(uint64(seed), 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		oneOfEachFirst(all)
	}
	some = min(some, len(all))
	t.Logf("seed %d: %d of %d points", seed, some, len(all))
	t.Run("points", func(t *testing.T) {
		for _, at := range all[:some] {
			t.Run(at.String(), func(t *testing.T) {
				t.Parallel() // most of a round is waiting for who was killed to be missed
				playUntilItComes(t, at)
			})
		}
	})
}

// playUntilItComes plays a point. How many writes there are differs from round to
// round: on a busy machine more of them are one. Where the point does not come, it
// is played again at a lesser number, for a round in which nothing happens shows
// nothing.
func playUntilItComes(t *testing.T, at point) {
	t.Helper()
	for !playPoint(t, at).came() {
		if at.number == 1 {
			t.Fatalf("the point does not come: %s", at)
		}
		t.Logf("the point did not come: %s", at)
		at.number /= 2
	}
}

// oneOfEachFirst has points begin with one of each server.
func oneOfEachFirst(all []point) {
	for i, server := range servers {
		if at := slices.IndexFunc(all, func(p point) bool { return p.server == server }); at >= i {
			all[i], all[at] = all[at], all[i]
		}
	}
}

// number reads one from the environment.
func number(t *testing.T, name string, usual, all int) int {
	t.Helper()
	switch text := os.Getenv(name); text {
	case "":
		return usual
	case "all":
		return all
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s=%q: give a number, or all", name, text)
		}
		return n
	}
}

// count plays two rounds in which nothing happens: how many writes there are
// differs by what the clock has added, and the lesser number comes in any.
func count(t *testing.T) map[string]int {
	t.Helper()
	least := countOnce(t)
	for server, n := range countOnce(t) {
		least[server] = min(least[server], n)
	}
	return least
}

func countOnce(t *testing.T) map[string]int {
	t.Helper()
	r := playPoint(t, point{})
	notes, err := os.ReadFile(filepath.Join(r.dir, storeNotes))
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range strings.Fields(string(notes)) { // before and after each
		if i%2 == 0 {
			r.trap.counts["store"]++
			r.trap.names["store"] = append(r.trap.names["store"], key)
		}
	}
	for server, names := range r.trap.names {
		t.Logf("%d writes to %s: %v", len(names), server, names)
	}
	return r.trap.counts
}

func playPoint(t *testing.T, at point) *round {
	t.Helper()
	r, err := openRound(t.TempDir(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		err := r.close()
		if err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(r.log.Name())
			t.Logf("the process said:\n%s", log)
		}
	}()
	runs, err := r.play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.judge(t.Context(), runs) {
		t.Error(f)
	}
	return r
}
