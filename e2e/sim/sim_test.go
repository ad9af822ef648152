package sim

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/internal/data/store/s3test"
)

var (
	seeds = flag.Int("sim.seeds", 60, "number of seeds")
	limit = flag.Duration("sim.for", 45*time.Second, "time after which no more worlds begin, once the first few have; 0 means no limit")
	first = flag.Uint64("sim.first", 1, "first seed")
	times = flag.Int("sim.times", 1, "number of worlds of each seed")
	until = flag.Bool("sim.until", false, "stop at the first seed that fails")
	here  = flag.Bool("sim.here", false, "run the first seed in this process")
	kinds = flag.String("sim.faults", "", "kinds of faults to switch, as in evict,-kill")
	tell  = flag.Bool("sim.tell", false, "print the short history of each world")
	part  = flag.Int("sim.part", 0, "number of this world among those of its seed; 0 if there is one")
)

// The faults that make sim-faults puts back still fit the code.
func TestFaultsFitTheCode(t *testing.T) {
	all, err := filepath.Glob("testdata/faults/*.patch")
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, patch := range all {
		check := exec.Command("git", "apply", "--check", filepath.Join("e2e", "sim", patch))
		check.Dir = filepath.Join("..", "..")
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", patch, err, out)
		}
	}
}

// TestWorlds runs each world in a process, because libraries keep channels that belong to a bubble in
// package variables. The process has one processor, which makes the order of events less random.
func TestWorlds(t *testing.T) {
	if *here {
		runWorld(t, *first)
		return
	}
	began := time.Now()
	all := seedsToPlay()
	failed := make([]atomic.Int64, len(all))
	worlds, begun := len(all)**times, 0
	free := make(chan struct{}, runtime.NumCPU())
	var playing sync.WaitGroup
	var found atomic.Bool
	for k := range worlds {
		free <- struct{}{}
		if *until && found.Load() || *limit > 0 && k >= fewest && time.Since(began) > *limit {
			<-free
			break
		}
		begun++
		playing.Go(func() {
			defer func() { <-free }()
			if !child(t, all[k / *times], k%*times) {
				failed[k / *times].Add(1)
				found.Store(true)
			}
		})
	}
	playing.Wait()
	for i := range failed {
		if n := failed[i].Load(); n > 0 {
			t.Errorf("seed %d failed in %d of %d worlds", all[i], n, *times)
		}
	}
	t.Logf("%d of %d worlds in %v: %.0f a minute", begun, worlds, time.Since(began).Round(time.Second), float64(begun)/time.Since(began).Minutes())
}

// kept are seeds that have found faults of Tidemill: a group of scorers that never got together, a late
// commit that put a group back, a 404 of the bucket that ended a run, a restart of Kafka after which a partition had no reader,
// an output that was created again while a scorer was in the middle of a delivery, partitions that were given back and not read, a ledger
// that was left open, attempts that ended or were too many during an upgrade, and scorers that waited for each other for ever.
var kept = []uint64{134, 285, 54, 502707, 603788, 800208, 182, 349, 500105}

// fewest is the number of worlds that are played also on a machine that is too slow for the limit.
const fewest = 10

// seedsToPlay returns the wanted seeds. If no first seed was given, the kept ones come before.
func seedsToPlay() (all []uint64) {
	if *first == 1 && *seeds > 1 {
		all = append(all, kept...)
	}
	for i := range *seeds {
		if seed := *first + uint64(i); !slices.Contains(all, seed) {
			all = append(all, seed)
		}
	}
	return all
}

// child runs the n-th world of a seed in a process, and reports whether it passed.
func child(t *testing.T, seed uint64, n int) bool {
	args := []string{"-test.run=^TestWorlds$", "-sim.here", fmt.Sprint("-sim.first=", seed), fmt.Sprint("-sim.tell=", *tell), fmt.Sprint("-test.v=", *tell), "-sim.faults=" + *kinds}
	if *times > 1 {
		args = append(args, fmt.Sprint("-sim.part=", n+1))
	}
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	out, err := c.CombinedOutput()
	if err != nil || *tell {
		t.Logf("seed %d: %v\n%s", seed, err, out)
	}
	return err == nil
}

// stuckAfter is the real time without a message after which a world counts as stuck. Virtual time
// stands still while a goroutine waits for a lock whose holder waits for time.
const stuckAfter = 3 * time.Minute

// steps counts the messages and decisions of this process's world.
var steps atomic.Int64

// unjudged is the world of this process until its verdict.
var unjudged atomic.Pointer[world]

// keepHistory writes the history of a world that ends without a verdict.
func keepHistory() {
	if w := unjudged.Swap(nil); w != nil {
		name, err := w.save()
		if err != nil {
			fmt.Fprintln(os.Stderr, "write the history:", err)
			return
		}
		fmt.Fprintln(os.Stderr, "the whole history is in", name)
	}
}

// watch ends the process if the world is stuck. It runs in real time.
func watch(seed uint64, done <-chan struct{}) {
	for last := int64(-1); ; last = steps.Load() {
		select {
		case <-done:
			return
		case <-time.After(stuckAfter):
		}
		if steps.Load() == last {
			fmt.Fprintf(os.Stderr, "the world of seed %d is stuck\n%s", seed, waiting())
			keepHistory()
			os.Exit(1)
		}
	}
}

// isOn reports whether a kind of faults is switched on.
func isOn(kind string) bool {
	for one := range strings.SplitSeq(*kinds, ",") {
		if name, off := strings.CutPrefix(one, "-"); name == kind {
			return !off
		}
	}
	return switches[kind]
}

// waiting returns the stacks of the goroutines that keep virtual time from moving.
func waiting() string {
	var all, some strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2) // a Builder never fails
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if head, _, _ := strings.Cut(stack, "\n"); strings.Contains(head, "synctest bubble") && !strings.Contains(head, "(durable)") {
			some.WriteString(stack + "\n\n")
		}
	}
	return some.String()
}

func runWorld(t *testing.T, seed uint64) {
	done := make(chan struct{})
	defer close(done)
	go watch(seed, done)
	defer keepHistory() // a failed start or a deadlock of the bubble ends a world early
	stopFinalizers()
	dir := folder(t)
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	synctest.Test(t, func(t *testing.T) { oneWorld(t, newPlan(seed), dir) })
}

// stopFinalizers keeps finalizers from running: one goroutine runs all of them, and waits for ever in this one. A
// finalizer of franz-go's decoders would close a channel of the bubble from outside.
func stopFinalizers() {
	waits := make(chan struct{})
	runtime.SetFinalizer(&struct{ _ *int }{}, func(any) {
		close(waits)
		select {}
	})
	runtime.GC()
	<-waits
}

// folder returns an empty folder, in memory if possible: worlds wait for the disk half of their time
// otherwise.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "tidemill-sim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

const (
	// quietFor is the time within which everything must have drained after the last fault. A run that fails often waits longer
	// each time. A retry that a clock ahead has planned waits longer by the difference of the clocks.
	quietFor = 8 * time.Minute
	lookEach = 5 * time.Second
)

func oneWorld(t *testing.T, p *plan, dir string) {
	w := newWorld(t, p, dir)
	unjudged.Store(w)
	w.history.say("PLAN: %+v", *p)
	w.begin()
	w.posts.begin(0)
	w.carryOut()
	w.posts.wg.Wait()
	w.lastings.Wait()
	w.sub.recover()
	w.resume()
	w.history.say("quiet begins")
	o, err := newOracle(w)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	wrong := o.complaints()
	for len(wrong) > 0 && time.Since(began) < quietFor+w.p.clocksDiffer() {
		time.Sleep(lookEach)
		wrong = o.complaints()
	}
	w.history.say("judged after %v of quiet: %d events posted, %d taken by subscribers, %d runs, %d scores, %d dead letters, %d messages on the network", time.Since(began),
		len(w.posts.all), len(w.sub.took), len(w.agents.runs), len(o.records["scored"]), len(o.records["dead-letters"]), w.history.messages)
	for _, line := range wrong {
		w.history.say("WRONG: %s", line)
	}
	o.client.Close()
	w.end()
	w.report(wrong)
}

// end stops everything, and waits for the rest of killed processes. Virtual time goes on while one does not end, so
// the world would never be stuck.
func (w *world) end() {
	late := time.AfterFunc(10*time.Minute, func() {
		fmt.Fprintf(os.Stderr, "ten minutes after the end of the world of seed %d, a process has not ended\n", w.p.seed)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		keepHistory()
		os.Exit(1)
	})
	defer late.Stop()
	w.stop()
	_ = w.sub.server.Close() // ends Serve also after an error
	if w.bucket != nil {
		_ = w.bucket.server.Close()
	}
	w.running.Wait()
	w.reaping.Wait()
	w.agents.all.Wait()
	if w.servers != nil {
		if err := w.servers.Close(); err != nil {
			w.t.Error(err)
		}
	}
	time.Sleep(time.Minute) // for timers of libraries
}

// save writes the whole history into a file of this world.
func (w *world) save() (name string, err error) {
	name = fmt.Sprintf("tidemill-sim-%d.txt", w.p.seed)
	if *part > 0 {
		name = fmt.Sprintf("tidemill-sim-%d-%d.txt", w.p.seed, *part)
	}
	name = filepath.Join(os.TempDir(), name)
	f, err := os.Create(name)
	if err != nil {
		return name, err
	}
	out := bufio.NewWriter(f)
	w.history.write(out, false)
	return name, errors.Join(out.Flush(), f.Close())
}

func (w *world) report(wrong []string) {
	unjudged.Store(nil)
	name := ""
	if len(wrong) > 0 {
		var err error
		if name, err = w.save(); err != nil {
			w.t.Error(err)
		}
	}
	if len(wrong) > 0 || *tell {
		var text strings.Builder
		w.history.write(&text, true)
		w.t.Log("\n" + text.String())
	}
	for i, line := range wrong {
		if i == 20 {
			w.t.Errorf("and %d more", len(wrong)-i)
			break
		}
		w.t.Error(line)
	}
	if len(wrong) > 0 {
		w.t.Errorf("seed %d: the whole history is in %s; run it again by: make sim SEED=%d TIMES=10", w.p.seed, name, w.p.seed)
	}
}
