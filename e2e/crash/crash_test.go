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

// TestCrash stops a process at ten writes that a fixed seed chooses. With TIDEMILL_CRASH_POINTS=all
// it stops at every write, and with a number it stops at that number of writes. The race detector
// makes a round several times as slow and finds other faults. With the detector, the test stops at
// one write to each server, because `make chaos` stops at ten writes without the detector.
func TestCrash(t *testing.T) {
	all := points(countWrites(t))
	few := 10
	if testing.Short() {
		few = 4
	}
	if raceDetector {
		few = len(servers)
	}
	seed, some := envNumber(t, "TIDEMILL_CHAOS_SEED", 1, len(all)), envNumber(t, "TIDEMILL_CRASH_POINTS", few, len(all))
	if some < len(all) {
		rand.New(rand.NewPCG(uint64(seed), 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		oneOfEachFirst(all)
	}
	some = min(some, len(all))
	t.Logf("seed %d: %d of %d points", seed, some, len(all))
	t.Run("points", func(t *testing.T) {
		for _, at := range all[:some] {
			t.Run(at.String(), func(t *testing.T) {
				t.Parallel() // a round mostly waits until the killed process is noticed
				playUntilItComes(t, at)
			})
		}
	})
}

// playUntilItComes plays a point. The number of writes differs from round to round, because a busy
// machine combines more writes. If the point is not reached, it is played again with a lower
// number, because a round without a kill or a flush tests nothing.
func playUntilItComes(t *testing.T, at point) {
	t.Helper()
	for !playPoint(t, at).pointReached() {
		if at.number == 1 {
			t.Fatalf("the point does not come: %s", at)
		}
		t.Logf("the point did not come: %s", at)
		at.number /= 2
	}
}

// oneOfEachFirst moves one point of each server to the front.
func oneOfEachFirst(all []point) {
	for i, server := range servers {
		if at := slices.IndexFunc(all, func(p point) bool { return p.server == server }); at >= i {
			all[i], all[at] = all[at], all[i]
		}
	}
}

// envNumber reads a number from the environment.
func envNumber(t *testing.T, name string, usual, all int) int {
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

// countWrites plays two rounds without a kill or a flush. The number of writes differs with the clock's
// additions; the lower number is reached in every round.
func countWrites(t *testing.T) map[string]int {
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
	for i, key := range strings.Fields(string(notes)) { // each write has two lines: one before the write and one after it
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
