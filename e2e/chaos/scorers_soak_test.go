package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker"
)

// TestSoakOfScorers runs scorers for TIDEMILL_SOAK_MINUTES while champions change, without kills.
// It fails if the scorers' memory, open files or lag grow from the second quarter to the last. By
// the second quarter all models are loaded. The outputs are judged as in a round of chaos.
func TestSoakOfScorers(t *testing.T) {
	text := os.Getenv("TIDEMILL_SOAK_MINUTES")
	if text == "" {
		t.Skip("TIDEMILL_SOAK_MINUTES says for how many minutes; `make soak-scorers MINUTES=60`")
	}
	minutes, err := strconv.ParseFloat(text, 64)
	if err != nil || minutes <= 0 {
		t.Fatalf("TIDEMILL_SOAK_MINUTES=%q: give a number above 0", text)
	}
	length := time.Duration(minutes * float64(time.Minute))
	p := scorersPlan{plan: plan{seed: uint64(setting(t, "SEED", 1)), profile: "soak", length: length}, events: int(length.Seconds()) * soakRate,
		memory: 16 << 10, hold: 20 * time.Millisecond, batch: 4096, keep: 10, broken: true}
	r := newScorersRound(t, p)
	if err := r.ownServers(); err != nil {
		t.Fatal(err)
	}
	samples := make(chan []sample, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { samples <- r.watch(ctx, length/soakSamples) }()
	playScorers(t, r, &figures{counts: map[string]int{}})
	stop()
	for _, fault := range findGrowth(<-samples, length) {
		t.Error(fault)
	}
}

const (
	soakRate    = 500 // events per second
	soakSamples = 200
)

// sample is the scorers' resources and lag at one time.
type sample struct {
	after  time.Duration
	memory int64 // resident bytes of all scorers
	files  int
	lag    int64
}

func (r *scorersRound) watch(ctx context.Context, every time.Duration) (all []sample) {
	began := time.Now()
	b, err := openBroker(ctx, r.fleet.addr, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	defer b.Close()
	for wait(ctx, every) == nil {
		s := sample{after: time.Since(began)}
		for _, pid := range r.fleet.pids("scorer") {
			memory, files, err := usage(pid)
			if err != nil { // the process is just ending
				continue
			}
			s.memory += memory
			s.files += files
		}
		if lags, err := lagsOf(ctx, b, streamIn); err == nil {
			for _, lag := range lags {
				s.lag += lag
			}
		}
		all = append(all, s)
	}
	return all
}

// usage returns a process's resident memory and open files, from /proc.
func usage(pid int) (memory int64, files int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	open, failed := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err = errors.Join(err, failed); err != nil {
		return 0, 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), len(open), err
}

// findGrowth reports growth. More than a quarter plus some slack is a leak, because the garbage
// collector does not explain so much.
func findGrowth(all []sample, length time.Duration) (f faults) {
	early, late := between(all, length/4, length/2), between(all, length*3/4, length)
	if len(early) < soakSamples/8 || len(late) < soakSamples/8 {
		f.add("too few samples: %d and %d", len(early), len(late))
		return f
	}
	median := func(of []sample, what func(sample) int64) int64 {
		values := make([]int64, len(of))
		for i, s := range of {
			values[i] = what(s)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	for _, c := range []struct {
		what  string
		of    func(sample) int64
		slack int64
	}{
		{"bytes of memory", func(s sample) int64 { return s.memory }, 64 << 20},
		{"open files", func(s sample) int64 { return int64(s.files) }, 24},
		{"events of lag", func(s sample) int64 { return s.lag }, soakRate},
	} {
		before, after := median(early, c.of), median(late, c.of)
		if after > before+before/4+c.slack {
			f.add("%d %s in the second quarter, and %d in the last", before, c.what, after)
		}
	}
	return f
}

func between(all []sample, from, to time.Duration) (some []sample) {
	for _, s := range all {
		if s.after >= from && s.after < to {
			some = append(some, s)
		}
	}
	return some
}

// Growth is found; steady samples are not reported.
func TestGrown(t *testing.T) {
	steady := func(grow func(i int64, s *sample)) (all []sample) {
		for i := range int64(soakSamples) {
			s := sample{after: time.Duration(i) * time.Second, memory: 200<<20 + i%7<<20, files: 90 + int(i%5), lag: i % 300}
			grow(i, &s)
			all = append(all, s)
		}
		return all
	}
	for want, grow := range map[string]func(int64, *sample){
		"":                func(int64, *sample) {},
		"bytes of memory": func(i int64, s *sample) { s.memory += i << 21 },
		"open files":      func(i int64, s *sample) { s.files += int(i) },
		"events of lag":   func(i int64, s *sample) { s.lag += 10 * i },
		"too few samples": func(i int64, s *sample) { s.after /= 100 },
	} {
		found := findGrowth(steady(grow), soakSamples*time.Second)
		if len(found) != min(1, len(want)) || len(found) == 1 && !strings.Contains(found[0], want) {
			t.Errorf("where %q grow it finds %q", want, found)
		}
	}
}

// lagsOf returns the lag of each group of a stream.
func lagsOf(ctx context.Context, b *broker.Broker, stream string) (map[string]int64, error) {
	all, err := b.Streams(ctx)
	lags := map[string]int64{}
	for _, s := range all {
		for _, g := range s.Groups {
			if s.Name == stream {
				lags[g.Group] = g.Lag
			}
		}
	}
	return lags, err
}
