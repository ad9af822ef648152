package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/network"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/data/store/s3test"
)

// impatient makes Silence short enough for a test. Attempts in tests send beats more often.
func impatient(o *Options) { o.Silence = 200 * time.Millisecond }

func alone(o *Options) { o.Alone = true }

func TestWhoIsNotHeardOfIsLost(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(impatient)
	w.watch(f)
	a := w.begun(f, wish("intent", "k", "1"))
	w.launch.end(tidemill.AttemptName(a.Run, 1)) // its pod was taken away
	w.waitUntil("another attempt is launched", func() bool { return len(w.launch.of(a.Run)) == 2 })
	run := w.run(f, a.Run)
	if first := run.Attempts[0]; first.Outcome != tidemill.OutcomeLost || !strings.Contains(first.Reason, "no beat from its agent for") {
		t.Errorf("its end is told as %+v", first)
	}
	all := w.launch.of(a.Run)
	if w.tokens.Counts(all[0].Token, run.ID, *run.Attempt()) || !w.tokens.Counts(all[1].Token, run.ID, *run.Attempt()) {
		t.Error("the token of the lost attempt counts")
	}
	if got, err := f.Finish(w.ctx(), run, 1, succeeded); err != nil || got.State != tidemill.RunRunning || got.Attempt().Number != 2 {
		t.Errorf("a late word of the lost attempt makes of the run %+v, %v", got, err)
	}
}

// A lost attempt that got further than those before it does not count towards the limit of losses. One that has only
// saved the same files again does.
func TestALostAttemptThatGotFurther(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	a := w.begun(f, wish("intent", "k", "1"))
	for i, saved := range []string{"1", "1", "", "2"} {
		w.waitUntil("the attempt is under way", func() bool {
			w.must(f.Advance(w.ctx(), "intent", "k"))
			return len(w.launch.of(a.Run)) == i+1
		})
		if saved != "" {
			w.must(w.store.SetCheckpoint(w.ctx(), a.Run, i+1, api.TreeRef{Tree: strings.Repeat(saved, 64)}))
		}
		run, err := f.Finish(w.ctx(), w.run(f, a.Run), i+1, tidemill.RunFinished{Outcome: tidemill.OutcomeLost})
		w.must(err)
		if got, want := run.Attempts[i].Saved, i == 0 || i == 3; got != want {
			t.Errorf("attempt %d got further: %v", i+1, got)
		}
	}
}

// conns is a network of one server, in memory.
type conns chan net.Conn

func (c conns) Accept() (net.Conn, error) {
	if one, ok := <-c; ok {
		return one, nil
	}
	return nil, net.ErrClosed
}

func (c conns) Close() error { close(c); return nil }

func (c conns) Addr() net.Addr { return &net.TCPAddr{} }

func (c conns) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	c <- theirs
	return ours, nil
}

// The store takes requests and does not answer. There is still time to append the end of a lost attempt.
func TestTheEndOfALostAttemptDoesNotWaitForTheStore(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	synctest.Test(t, func(t *testing.T) {
		bucket, over := s3test.New(), make(conns)
		var hangs atomic.Bool
		serving := &http.Server{Handler: http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
			if hangs.Load() {
				<-r.Context().Done()
				return
			}
			bucket.ServeHTTP(to, r)
		})}
		defer serving.Close()
		go func() { _ = serving.Serve(over) }()
		kept, err := store.Open(t.Context(), store.Options{URL: "s3://" + s3test.Bucket + "?endpoint=http://bucket:1", Network: network.Network{Dial: over.dial}})
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		f, run := &Foreman{opt: Options{Store: kept}, log: slog.New(slog.DiscardHandler)}, &tidemill.Run{ID: "run"}
		ctx, cancel := steady(t.Context())
		defer cancel()
		if hangs.Store(true); f.hasSaved(ctx, run, 1) || ctx.Err() != nil {
			t.Errorf("the time for the end of the attempt is over: %v", ctx.Err())
		}
	})
}

func TestWhoIsHeardOfIsNotLost(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(func(o *Options) { o.Silence = time.Minute })
	look := w.watcher(f)
	beats := w.ask(f, wish("intent", "beats", "1"))
	there := w.ask(f, wish("intent", "there", "1"))
	gone := w.ask(f, wish("intent", "gone", "1"))
	w.launch.end(tidemill.AttemptName(beats.Run, 1)) // the launcher has forgotten an attempt that still runs
	w.launch.end(tidemill.AttemptName(gone.Run, 1))
	look(0)
	w.must(f.ledger.Beat(w.ctx(), beats.Run, 1, "", time.Now().Add(-time.Hour))) // the clock of its gateway is behind
	look(50 * time.Second)
	look(50 * time.Second)
	if first := w.run(f, gone.Run).Attempts[0]; first.Outcome != tidemill.OutcomeLost {
		t.Errorf("the one that is gone is not found: %+v", first)
	}
	for _, a := range []Answer{beats, there} {
		if run := w.run(f, a.Run); len(run.Attempts) != 1 || run.State != tidemill.RunRunning {
			t.Errorf("the run is %+v", run)
		}
	}
}

// A machine that was suspended for an hour has heard no agent for so long. Its agents get the time of a silence again.
// So do the agents of a machine whose clock was set back, and no later.
func TestNothingIsLostByASuspendedMachine(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld(t, plain("intent"))
		f := w.foreman(func(o *Options) { o.Silence = time.Minute })
		look := w.watcher(f)
		a := w.begun(f, wish("intent", "k", "1"))
		w.launch.end(tidemill.AttemptName(a.Run, 1)) // another launcher has it
		for _, c := range []struct {
			by   time.Duration
			lost bool
		}{{0, false}, {step, false}, {50 * time.Second, false}, {50 * time.Second, true}} {
			look(c.by)
			if first := w.run(f, a.Run).Attempts[0]; (first.Outcome == tidemill.OutcomeLost) != c.lost {
				t.Errorf("after a step of %s, and then of %s, the attempt is %+v", step, c.by, first)
			}
		}
	}
}

// A commit takes two minutes and fails in each sweep, for example because the store does not answer. The sweeps still find a
// silent attempt: its agent could send beats meanwhile.
func TestALongSweepHidesNoLoss(t *testing.T) {
	w := newWorld(t, plain("intent"), cleaner())
	var sweeps atomic.Int64
	f := w.foreman(func(o *Options) {
		o.Silence = time.Minute
		o.Announce = func(context.Context, api.Commit) error {
			sweeps.Add(1)
			return errors.New("the store does not answer")
		}
	})
	f.now = func() time.Time { return wholeMilliseconds().Add(time.Duration(sweeps.Load()) * 2 * time.Minute) }
	lost, made := w.begun(f, wish("intent", "k", "1")), w.begun(f, wish("clean", "k", "1"))
	w.launch.end(tidemill.AttemptName(lost.Run, 1))
	d := w.made(w.tree("a.csv", "1"))
	d.Attempt = 1
	_, _, err := f.appendFact(w.ctx(), finishedFact(w.run(f, made.Run), byGateway, d, f.now()), f.now())
	w.must(err)
	watching := &watcher{Foreman: f, rules: rules{silence: f.opt.Silence}}
	l := loop{recovered: f.now().Add(time.Hour)} // a recovery would announce the commit, too
	for range 3 {
		w.must(watching.lookAround(w.ctx(), &l))
	}
	if first := w.run(f, lost.Run).Attempts[0]; first.Outcome != tidemill.OutcomeLost || sweeps.Load() < 3 {
		t.Errorf("after %d sweeps, the attempt is %+v", sweeps.Load(), first)
	}
}

// watcher returns a function that advances the time of a foreman, and then lets its watcher look around once.
func (w *world) watcher(f *Foreman) (look func(by time.Duration)) {
	watching, step := &watcher{Foreman: f, rules: rules{silence: f.opt.Silence}}, time.Duration(0)
	f.now = func() time.Time { return wholeMilliseconds().UTC().Add(step) }
	var l loop
	return func(by time.Duration) {
		w.Helper()
		step += by
		w.must(watching.lookAround(w.ctx(), &l))
	}
}

// After a laptop was killed, its runs go on at once, because no process of its attempts is left.
func TestARestartedLaptopGoesOnAtOnce(t *testing.T) {
	w := newWorld(t, plain("intent"))
	before := w.foreman(alone)
	stop := w.watch(before)
	a := w.begun(before, wish("intent", "k", "1"))
	stop()
	w.launch.end(tidemill.AttemptName(a.Run, 1))
	f := w.foreman(alone) // only now, because it would declare the attempts of another process lost
	w.watch(f)
	w.waitUntil("the next attempt is launched", func() bool { return len(w.launch.of(a.Run)) == 2 })
	run := w.run(f, a.Run)
	if first := run.Attempts[0]; first.Reason != "the process that ran it is gone" || run.State != tidemill.RunRunning {
		t.Errorf("the run is %+v", run)
	}
}

// If a process is stopped between the log and the launch, the log has begun an attempt that was
// never launched.
func TestACrashBetweenTheLogAndTheLaunch(t *testing.T) {
	for name, set := range map[string]func(*Options){"in a cluster": impatient, "on a laptop": alone} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, plain("intent"))
			crashed := make(chan struct{})
			victim := w.foreman(func(o *Options) { o.Launcher = stuck{w.launch, crashed} })
			go func() { _, _ = victim.Request(w.ctx(), wish("intent", "k", "1")) }()
			t.Cleanup(func() { close(crashed) })
			f := w.foreman(set)
			id := tidemill.RunID("intent", "k", tidemill.Cause{Source: "/s", ID: "1"})
			w.waitUntil("the log has begun it", func() bool {
				m, err := f.ledger.Making(w.ctx(), "intent", "k")
				return err == nil && m.Live != nil
			})
			w.watch(f)
			w.waitUntil("another attempt is launched", func() bool { return len(w.launch.of(id)) == 1 })
			if run := w.run(f, id); run.Attempt().Number != 2 || w.launch.of(id)[0].Number != 2 {
				t.Errorf("the run is %+v", run)
			}
		})
	}
}

// stuck is a launcher whose process stops during a launch.
type stuck struct {
	*launches
	crashed chan struct{}
}

// Launch waits until the channel is closed, and launches nothing.
func (s stuck) Launch(context.Context, Attempt) error {
	<-s.crashed
	return nil
}

// During a long launch, the same process does not declare the attempt lost.
func TestALongLaunchIsNoLoss(t *testing.T) {
	w := newWorld(t, plain("intent"))
	slow := make(chan struct{})
	f := w.foreman(func(o *Options) { o.Launcher, o.Alone = stuck{w.launch, slow}, true })
	asked := make(chan Answer, 1)
	go func() {
		a, _ := f.Request(w.ctx(), wish("intent", "k", "1"))
		asked <- a
	}()
	w.waitUntil("the log has begun it", func() bool {
		m, err := f.ledger.Making(w.ctx(), "intent", "k")
		return err == nil && m.Live != nil
	})
	wt := &watcher{Foreman: f, rules: rules{alone: true}}
	for range 3 {
		w.must(wt.sweep(w.ctx()))
	}
	close(slow)
	a := <-asked
	if run := w.run(f, a.Run); len(run.Attempts) != 1 || run.State != tidemill.RunRunning {
		t.Errorf("the run is %+v", run)
	}
	w.must(wt.sweep(w.ctx()))
	if run := w.run(f, a.Run); run.Attempts[0].Outcome != tidemill.OutcomeLost {
		t.Errorf("after the launch, of which the launcher knows nothing, the run is %+v", run)
	}
}

// meeting makes calls wait for each other in pairs.
type meeting chan struct{}

func (m meeting) wait(ctx context.Context) error {
	select {
	case m <- struct{}{}:
	case <-m:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// slowly is a launcher that answers two questions at the same time, and never one alone.
type slowly struct {
	*launches
	meeting
}

func (s slowly) Has(ctx context.Context, name string) (bool, error) {
	has, _ := s.launches.Has(ctx, name)
	return has, s.wait(ctx)
}

// A sweep works on several runs at the same time, so that those of a long outage do not wait one after the other.
func TestASweepWorksOnSeveralRuns(t *testing.T) {
	w := newWorld(t, plain("intent"), cleaner())
	pairs := make(meeting)
	f := w.foreman(func(o *Options) {
		o.Launcher = slowly{w.launch, pairs}
		o.Announce = func(ctx context.Context, _ api.Commit) error { return pairs.wait(ctx) }
	})
	var lost, made []string
	for _, key := range []string{"a", "b"} {
		lost, made = append(lost, w.begun(f, wish("intent", key, "1")).Run), append(made, w.begun(f, wish("clean", key, "1")).Run)
	}
	for i := range made {
		w.launch.end(tidemill.AttemptName(lost[i], 1))
		d := w.made(w.tree("a.csv", made[i]))
		d.Attempt = 1
		_, _, err := f.appendFact(w.ctx(), finishedFact(w.run(f, made[i]), byGateway, d, time.Now()), time.Now())
		w.must(err)
	}
	w.must((&watcher{Foreman: f, rules: rules{alone: true}}).sweep(w.ctx()))
	for i := range made {
		if r := w.run(f, made[i]); r.State != tidemill.RunSucceeded {
			t.Errorf("a run whose output waited is %+v", r)
		}
		if a := w.run(f, lost[i]).Attempts[0]; a.Outcome != tidemill.OutcomeLost {
			t.Errorf("a lost attempt is %+v", a)
		}
	}
}

// timed is a launcher that records how long its calls may take.
type timed struct {
	*launches
	times []time.Duration // 0 is for ever
}

func (l *timed) call(ctx context.Context) {
	by, ok := ctx.Deadline()
	l.times = append(l.times, 0)
	if ok {
		l.times[len(l.times)-1] = time.Until(by)
	}
}

func (l *timed) Has(ctx context.Context, _ string) (bool, error) { l.call(ctx); return true, nil }

func (l *timed) Stop(ctx context.Context, _ string) error { l.call(ctx); return nil }

// A sweep waits for a launcher only for a while. A process that even the kernel cannot end would stop the sweeps for ever.
func TestASweepDoesNotWaitForeverForALauncher(t *testing.T) {
	w := newWorld(t, plain("intent"))
	calls := &timed{launches: w.launch}
	f := w.foreman(func(o *Options) { o.Launcher = calls })
	run := w.run(f, w.begun(f, wish("intent", "k", "1")).Run)
	s := suspicion{there: "it did not end within its deadline"}
	w.must((&watcher{Foreman: f}).tend(t.Context(), run, tidemill.AttemptName(run.ID, 1), s))
	if len(calls.times) != 2 || slices.ContainsFunc(calls.times, func(d time.Duration) bool { return d <= 0 || d > steadyFor }) {
		t.Errorf("the calls may take %v", calls.times)
	}
	if a := w.run(f, run.ID).Attempts[0]; a.Outcome != tidemill.OutcomeLost {
		t.Errorf("the attempt is %+v", a)
	}
}

// A process that stops after its claim has done nothing else yet. The claim expires, or is lost
// when Redis is flushed.
func TestACrashAfterAClaim(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	w.act(tidemill.TypePoolPaused, "default")
	a := w.ask(f, wish("intent", "k", "1"))
	w.act(tidemill.TypePoolResumed, "default")
	ask, _ := f.dueRecipes(w.configNow(), "default")
	if s, ok, err := f.ledger.Claim(w.ctx(), ask, time.Now()); !ok || s.Run != a.Run {
		t.Fatalf("claimed is %+v, %v, %v", s, ok, err)
	}
	w.watch(f)
	w.must(w.redis.FlushAll(w.ctx()).Err())
	w.waitUntil("it begins", func() bool { return len(w.launch.of(a.Run)) == 1 })
}

func TestCancellations(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(impatient)
	first := w.ask(f, wish("intent", "k", "1"))
	waits := w.ask(f, wish("intent", "k", "2"))
	run, err := f.Cancel(w.ctx(), w.run(f, waits.Run), "ada", "not needed")
	if w.must(err); run.State != tidemill.RunCancelled || run.Reason != "not needed" || run.Cancel.By != "ada" {
		t.Errorf("a run that waits becomes %+v", run)
	}
	if run, err = f.Cancel(w.ctx(), w.run(f, first.Run), "ada", "a mistake"); err != nil || run.State != tidemill.RunRunning || run.Cancel == nil {
		t.Errorf("a run that is live becomes %+v, %v", run, err)
	}
	again, err := f.Cancel(w.ctx(), run, "bob", "me too")
	if w.must(err); again.Cancel.By != "ada" {
		t.Errorf("cancelled twice it is %+v", again.Cancel)
	}
	if run = w.finish(f, w.launch.of(first.Run)[0], broken); run.State != tidemill.RunCancelled || run.Reason != "a mistake" {
		t.Errorf("after the end of its attempt it is %+v", run)
	}
	if run, err = f.Cancel(w.ctx(), run, "ada", "more"); err != nil || run.Reason != "a mistake" {
		t.Errorf("cancelled after its end it is %+v, %v", run, err)
	}
}

// If an agent does not get the cancellation of its run, the attempt is lost, even if the launcher
// still knows it. Another run gets the slot.
func TestWhoDoesNotHearOfACancellation(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(impatient)
	w.watch(f)
	a := w.begun(f, wish("intent", "k", "1"))
	next := w.ask(f, wish("intent", "k", "2"))
	_, err := f.Cancel(w.ctx(), w.run(f, a.Run), "ada", "a mistake")
	w.must(err)
	run := w.until(f, a.Run, tidemill.RunCancelled)
	if run.Reason != "a mistake" || !strings.Contains(run.Attempts[0].Reason, "of being cancelled") {
		t.Errorf("the run is %+v", run)
	}
	w.waitUntil("it is stopped", func() bool { return w.launch.wasStopped(tidemill.AttemptName(a.Run, 1)) })
	w.waitUntil("the next begins", func() bool { return len(w.launch.of(next.Run)) == 1 })
}

func TestCancelledBetweenTwoAttempts(t *testing.T) {
	r := plain("intent")
	r.Run.Backoff.First, r.Run.Backoff.Cap = time.Hour, time.Hour
	w := newWorld(t, r)
	f := w.foreman(nil)
	a := w.ask(f, wish("intent", "k", "1"))
	next := w.ask(f, wish("intent", "k", "2"))
	if run := w.finish(f, w.launch.of(a.Run)[0], broken); run.State != tidemill.RunRetrying {
		t.Fatalf("the run is %+v", run)
	}
	run, err := f.Cancel(w.ctx(), w.run(f, a.Run), "ada", "it would fail again")
	if w.must(err); run.State != tidemill.RunCancelled || len(w.launch.of(next.Run)) != 1 {
		t.Errorf("the run is %+v, launched are %+v", run, w.launch.launched())
	}
}
