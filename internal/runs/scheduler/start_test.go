package scheduler

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger/fold"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) // read only

func waiting(id string, due time.Time) *tidemill.Run {
	return &tidemill.Run{ID: id, State: tidemill.RunWaiting, Asked: []int64{3}, Due: due}
}

func live(state tidemill.RunState, due time.Time, attempts ...tidemill.Attempt) *tidemill.Run {
	return &tidemill.Run{ID: "live", State: state, Asked: []int64{1}, Due: due, Attempts: attempts}
}

func TestNext(t *testing.T) {
	t.Parallel()
	later, before := noon.Add(time.Second), noon.Add(-time.Second)
	first := tidemill.Attempt{Number: 1, Offset: 7}
	for _, c := range []struct {
		name string
		m    fold.Making
		want move
	}{
		{"nothing is known", fold.Making{}, nothing},
		{"one waits for its time", fold.Making{Waiting: waiting("w", later)}, nothing},
		{"one waits, and it is time", fold.Making{Waiting: waiting("w", noon)}, admits},
		{"one waits for another", fold.Making{Live: live(tidemill.RunRunning, time.Time{}, first), Waiting: waiting("w", before)}, nothing},
		{"an attempt is under way", fold.Making{Live: live(tidemill.RunRunning, time.Time{}, first)}, nothing},
		{"the next attempt waits", fold.Making{Live: live(tidemill.RunRetrying, later, first), Waiting: waiting("w", before)}, nothing},
		{"the next attempt may begin", fold.Making{Live: live(tidemill.RunRetrying, before, first)}, admits},
		{"it succeeded", fold.Making{Live: live(tidemill.RunCommitting, time.Time{}, first), Waiting: waiting("w", before)}, settles},
	} {
		if got := nextStep(&c.m, noon); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestWhoMayLaunch(t *testing.T) {
	t.Parallel()
	second := []tidemill.Attempt{{Number: 1, Offset: 7}, {Number: 2, Offset: 9}}
	m := &fold.Making{Live: live(tidemill.RunRunning, time.Time{}, second...)}
	rests := &fold.Making{Live: live(tidemill.RunRetrying, noon, second...)}
	for _, c := range []struct {
		name   string
		m      *fold.Making
		run    string
		number int
		offset int64
		want   bool
	}{
		{"who began it", m, "live", 2, 9, true},
		{"who was second", m, "live", 2, 10, false},
		{"who began the one before", m, "live", 1, 7, false},
		{"of another run", m, "other", 2, 9, false},
		{"after its end", rests, "live", 2, 9, false},
		{"of nothing", &fold.Making{}, "live", 2, 9, false},
	} {
		if got := begun(c.m, c.run, c.number, c.offset); (got != nil) != c.want {
			t.Errorf("%s: %+v, want %t", c.name, got, c.want)
		}
	}
}

func TestSuspicions(t *testing.T) {
	t.Parallel()
	plan, _ := json.Marshal(tidemill.Plan{Deadline: time.Hour, Grace: 30 * time.Second})
	cluster, laptop := rules{silence: 10 * time.Second}, rules{silence: 10 * time.Second, alone: true}
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	for _, c := range []struct {
		name    string
		r       rules
		started time.Duration // ago
		heard   time.Duration // ago
		cancel  time.Duration // ago; 0 if not cancelled
		gone    string
		there   string
	}{
		{"heard of just now", cluster, time.Minute, time.Second, 0, "", ""},
		{"silent, just not too long", cluster, time.Minute, 10 * time.Second, 0, "", ""},
		{"silent", cluster, time.Minute, 12 * time.Second, 0, "no beat from its agent for 12s", ""},
		{"alone", laptop, time.Minute, 0, 0, "the process that ran it is gone", ""},
		{"alone and silent", laptop, time.Minute, time.Minute, 0, "no beat from its agent for 1m0s", ""},
		{"cancelled just now", cluster, time.Minute, time.Second, time.Second, "", ""},
		{"cancelled, within its grace", cluster, time.Minute, time.Second, 50 * time.Second, "", ""},
		{"cancelled long ago", cluster, time.Minute, time.Second, 51 * time.Second, "", "it did not end within 51s of being cancelled"},
		{"beyond its deadline", cluster, time.Hour + 9*time.Minute, time.Second, 0, "", ""},
		{"beyond it, and it brings away what it has made", cluster, 2 * time.Hour, time.Second, 0, "", ""},
		{"so, and tells for long", cluster, 3*time.Hour + 10*time.Minute, time.Second, 0, "", ""},
		{"far beyond", cluster, 3*time.Hour + 11*time.Minute, time.Second, 0, "", "it did not end within 2h11m0s of its deadline"},
		{"beyond, and silent", cluster, time.Hour + 9*time.Minute, time.Minute, 0, "no beat from its agent for 1m0s", ""},
		{"far beyond for one that is silent", cluster, time.Hour + 11*time.Minute, time.Minute, 0, "no beat from its agent for 1m0s", "it did not end within 11m0s of its deadline"},
	} {
		run := live(tidemill.RunRunning, time.Time{}, tidemill.Attempt{Number: 1, Offset: 4, Started: ago(c.started)})
		run.Plan = plan
		if c.cancel > 0 {
			run.Cancel = &tidemill.Cancel{At: ago(c.cancel)}
		}
		if got := c.r.suspect(run, ago(c.heard), noon); got.gone != c.gone || got.there != c.there {
			t.Errorf("%s: %+v, want %q and %q", c.name, got, c.gone, c.there)
		}
	}
}

// The launcher is asked rarely about an attempt that waits for a node, not with every sweep.
func TestWhatWaitsIsSeldomAskedFor(t *testing.T) {
	t.Parallel()
	w := &watcher{}
	a := &tidemill.Attempt{Number: 1, Pending: "no node has a GPU free"}
	silent := suspicion{gone: "no beat from its agent"}
	for _, c := range []struct {
		after time.Duration
		s     suspicion
		want  bool
	}{
		{0, silent, false}, {2 * time.Second, silent, true}, {29 * time.Second, silent, true}, {31 * time.Second, silent, false},
		{32 * time.Second, silent, true}, {33 * time.Second, suspicion{there: "it was cancelled"}, false},
	} {
		if got := w.waitsForNode(a, "run-1", c.s, noon.Add(c.after)); got != c.want {
			t.Errorf("after %s: %t", c.after, got)
		}
	}
	if a.Pending = ""; w.waitsForNode(a, "run-1", silent, noon) {
		t.Error("one that runs is not asked for")
	}
}

// A pod that waits for a node has no agent that could get the cancellation of the run.
func TestWhatHasNotBegunIsCancelledAtOnce(t *testing.T) {
	t.Parallel()
	run := live(tidemill.RunRunning, time.Time{}, tidemill.Attempt{Number: 1, Started: noon.Add(-time.Minute), Pending: "no node has a GPU free"})
	r := rules{silence: 10 * time.Second}
	if got := r.suspect(run, noon, noon); got.any() {
		t.Errorf("it is suspected: %+v", got)
	}
	run.Cancel = &tidemill.Cancel{At: noon}
	if got := r.suspect(run, noon, noon); got.there == "" {
		t.Error("it waits for an agent that is not there")
	}
}

// A pod may wait for a node without limit. Its deadline begins only when it runs.
func TestTheDeadlineDoesNotRunWhileAPodWaits(t *testing.T) {
	t.Parallel()
	plan, cluster := []byte(`{"deadline":3600000000000}`), rules{silence: 10 * time.Second}
	waits := tidemill.Attempt{Number: 1, Started: noon.Add(-100 * time.Hour), Pending: "no node has a GPU free"}
	runs := tidemill.Attempt{Number: 1, Started: noon.Add(-100 * time.Hour), Began: noon.Add(-time.Hour)}
	for _, a := range []tidemill.Attempt{waits, runs} {
		run := live(tidemill.RunRunning, time.Time{}, a)
		run.Plan = plan
		if got := cluster.suspect(run, noon, noon); got.any() {
			t.Errorf("%+v is suspected: %+v", a, got)
		}
	}
	runs.Began = noon.Add(-4 * time.Hour)
	run := live(tidemill.RunRunning, time.Time{}, runs)
	run.Plan = plan
	if got := cluster.suspect(run, noon, noon); got.there == "" {
		t.Error("it is not suspected three hours behind its deadline")
	}
}

func TestAPlanWithoutADeadlineIsNotLate(t *testing.T) {
	t.Parallel()
	run := live(tidemill.RunRunning, time.Time{}, tidemill.Attempt{Number: 1, Started: noon.Add(-1000 * time.Hour)})
	if got := (rules{silence: time.Second}).suspect(run, noon, noon); got.any() {
		t.Errorf("it is suspected: %+v", got)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	model, _ := json.Marshal(tidemill.Plan{Attempts: 2, Model: "m"})
	data, _ := json.Marshal(tidemill.Plan{Attempts: 2, Dataset: "d"})
	first := tidemill.Attempt{Number: 1, Offset: 4}
	second := []tidemill.Attempt{{Number: 1, Offset: 4, Outcome: tidemill.OutcomeFailed}, {Number: 2, Offset: 9}}
	for _, c := range []struct {
		name     string
		plan     []byte
		attempts []tidemill.Attempt
		cancel   bool
		d        tidemill.RunFinished
		want     string
	}{
		{"a model", model, []tidemill.Attempt{first}, false, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded}, nowSucceeded},
		{"a dataset", data, []tidemill.Attempt{first}, false, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded}, nowSucceeded},
		{"the first failure", model, []tidemill.Attempt{first}, false, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeFailed}, nowRetrying},
		{"the last failure", model, second, false, tidemill.RunFinished{Attempt: 2, Outcome: tidemill.OutcomeFailed}, nowFailed},
		{"a hopeless failure", model, []tidemill.Attempt{first}, false, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeFailed, Permanent: true}, nowFailed},
		{"a loss", model, second, false, tidemill.RunFinished{Attempt: 2, Outcome: tidemill.OutcomeLost}, nowRetrying},
		{"a cancellation", model, []tidemill.Attempt{first}, false, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeCancelled}, nowCancelled},
		{"a failure after one", model, []tidemill.Attempt{first}, true, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeFailed}, nowCancelled},
	} {
		run := live(tidemill.RunRunning, time.Time{}, c.attempts...)
		run.Plan = c.plan
		if c.cancel {
			run.Cancel = &tidemill.Cancel{At: noon}
		}
		before := *run
		if got := outcomeOf(run, c.d, noon); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if run.State != before.State || run.Attempt().Outcome != "" {
			t.Errorf("%s: the run itself has changed: %+v", c.name, run)
		}
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	var m fold.Making
	wish := func(id string) Request {
		return Request{Recipe: "r", Key: "k", Cause: tidemill.Cause{Source: "/s", ID: id}}
	}
	offset := int64(10)
	ask := func(r Request) Answer {
		offset++
		data, _ := json.Marshal(tidemill.RunRequested{Cause: r.Cause})
		m.Apply(fold.Fact{Offset: offset, Type: tidemill.TypeRunRequested, Recipe: r.Recipe, Key: r.Key,
			Run: tidemill.RunID(r.Recipe, r.Key, r.Cause), Data: data, At: noon})
		return answerOf(&m, r, offset)
	}
	id := tidemill.RunID("r", "k", wish("1").Cause)
	for i, want := range []Answer{{id, fold.Accepted}, {id, fold.Merged}, {id, fold.Known}, {id, fold.Known}} {
		if got := ask(wish([]string{"1", "2", "1", "2"}[i])); got != want {
			t.Errorf("wish %d: %+v, want %+v", i, got, want)
		}
	}
	m.Waiting = nil // the run has ended
	if got := ask(wish("2")); got != (Answer{id, fold.Known}) {
		t.Errorf("a repeat after the run's end: %+v", got)
	}
	if got := answerOf(&m, wish("3"), 99); got.Run != "" {
		t.Errorf("a wish that the log does not hold is answered %+v", got)
	}
}

// launches is a launcher that records its calls. Its attempts run until the test ends them.
type launches struct {
	mu      sync.Mutex
	all     []Attempt
	at      map[string]bool // attempts at work, by name
	stopped []string
	fail    func(Attempt) error
	does    func(Attempt) // work of an attempt, in its own goroutine; the attempt ends after it
	working sync.WaitGroup
}

func newLaunches(w *world) *launches {
	l := &launches{at: map[string]bool{}}
	w.Cleanup(l.working.Wait)
	return l
}

// Launch implements Launcher.
func (l *launches) Launch(_ context.Context, a Attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		if err := l.fail(a); err != nil {
			return err
		}
	}
	l.all = append(l.all, a)
	l.at[a.Name] = true
	if does := l.does; does != nil {
		l.working.Go(func() {
			does(a)
			l.end(a.Name)
		})
	}
	return nil
}

// Has implements Launcher.
func (l *launches) Has(_ context.Context, name string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[name], nil
}

// Stop implements Launcher.
func (l *launches) Stop(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = append(l.stopped, name)
	delete(l.at, name)
	return nil
}

// Slots implements Launcher.
func (l *launches) Slots(p config.Pool) int { return p.Slots }

func (l *launches) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.at, name)
}

func (l *launches) launched() []Attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func (l *launches) wasStopped(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.stopped, name)
}

func (l *launches) of(run string) (all []Attempt) {
	for _, a := range l.launched() {
		if a.Run == run {
			all = append(all, a)
		}
	}
	return all
}

// A run begins although another cause comes at each look-up of its inputs. The causes that come after
// the run is closed ask for the next run.
func TestAHotKeyBegins(t *testing.T) {
	w := newWorld(t, plain("intent"))
	asker := w.foreman(func(o *Options) { o.Launcher = nil })
	hot, causes := false, 0
	f := w.foreman(func(o *Options) {
		o.Config = func() *config.Config { // each start reads it before the inputs are looked up
			if hot {
				causes++
				w.ask(asker, wish("intent", "k", strconv.Itoa(causes)))
			}
			return w.configNow()
		}
	})
	first := w.ask(asker, wish("intent", "k", "first"))
	w.must(f.ledger.CaughtUp(w.ctx()))
	hot = true
	err := f.Advance(w.ctx(), "intent", "k")
	hot = false
	w.must(err)
	if launched := w.launch.launched(); len(launched) != 1 || launched[0].Run != first.Run {
		t.Fatalf("after %d causes, launched are %+v", causes, launched)
	}
	m, err := f.ledger.Making(w.ctx(), "intent", "k")
	w.must(err)
	if m.Live == nil || m.Waiting == nil || m.Live.Causes+m.Waiting.Causes != causes+1 || m.Live.Newest == m.Waiting.First {
		t.Errorf("of %d causes, live is %+v, and %+v waits", causes+1, m.Live, m.Waiting)
	}
}

// The present config decides in which pool a run starts attempts. If the pool of a retried run was renamed, its next
// attempt starts in the new one, and takes a slot there.
func TestARetryFollowsItsRecipeToAnotherPool(t *testing.T) {
	r := plain("intent")
	w := newWorld(t, r)
	f := w.foreman(nil)
	a := w.begun(f, wish("intent", "k", "1"))
	moved := r
	moved.Run.Pool = "newer"
	w.change(func(c *config.Config) {
		c.Recipes, c.Pools = []config.Recipe{moved}, []config.Pool{{Name: "newer", Slots: 1}}
	})
	_, err := f.Finish(w.ctx(), w.run(f, a.Run), 1, tidemill.RunFinished{Outcome: tidemill.OutcomeLost, Reason: "its node is gone"})
	w.must(err)
	w.must(f.Advance(w.ctx(), "intent", "k"))
	launched := w.launch.of(a.Run)
	if len(launched) != 2 || launched[1].Plan.Pool != "newer" {
		t.Fatalf("launched is %+v", launched)
	}
	if run := w.run(f, a.Run); run.Pool != "newer" || !w.tokens.Signed(run) {
		t.Errorf("the run is in pool %s, with the plan %s", run.Pool, run.Plan)
	}
	busy, err := f.ledger.Busy(w.ctx(), time.Now())
	if err != nil || busy.Pools["newer"] != 1 || busy.Pools["default"] != 0 {
		t.Errorf("busy are %v, %v", busy.Pools, err)
	}
}
