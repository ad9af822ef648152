package trials

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/models/registry"
)

// Candidate answers events with the model of a version. One goroutine uses it.
type Candidate interface {
	// Label returns the label of the answer to an event. Label counts an error as a wrong answer, unless it is
	// ErrLater.
	Label(v *broker.View) (string, error)
	Close()
}

// ErrLater reports that a candidate cannot answer now, and may later. The event is not at fault.
var ErrLater = errors.New("the candidate cannot answer now")

// Options configure the trials of a scorer.
type Options struct {
	Broker    *broker.Broker
	Ledger    *ledger.Ledger
	Registrar *registry.Registrar
	Scorer    config.Scorer
	// Load loads the model of a version. An error that is not ErrLater counts as an error for each event.
	Load func(context.Context, *tidemill.Version) (Candidate, error)
	// Share is the share of one core that the trials may use while the scorer answers events; 0 means 0.1.
	Share float64
	// Told gets the states of all trials after each look that changed one; nil means that nothing wants them.
	Told   func(context.Context, []api.Trial)
	Every  time.Duration // time between looks at the streams; 0 means a second
	Logger *slog.Logger
}

// Run runs all trials of a scorer until the context ends. It keeps no state that the logs do not have, and two
// processes that run the same trials only do the work twice: the ledger accepts the first end of a trial.
func Run(ctx context.Context, o Options) error {
	r := &runner{Options: o, trials: map[string]*trial{}}
	r.Every, r.pace.share = cmp.Or(o.Every, time.Second), cmp.Or(o.Share, 0.1)
	var err error
	if r.table, err = openTable(ctx, o.Broker, o.Ledger, o.Logger); err != nil {
		return fmt.Errorf("run the trials of scorer %s: %w", o.Scorer.Name, err)
	}
	err = r.run(ctx)
	err = errors.Join(err, r.table.close(context.WithoutCancel(ctx)))
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("run the trials of scorer %s: %w", o.Scorer.Name, err)
}

// runner runs the trials of one scorer, in one goroutine.
type runner struct {
	Options
	pace    pace
	table   *table
	trials  map[string]*trial // by model
	cohorts []*cohort         // the first one reads at the head of the streams
	asked   time.Time         // time at which the ids of the streams were last asked for
	told    bool              // whether the last look told of trials
}

// trial is a trial that is running.
type trial struct {
	v        *ledger.VersionRecord
	began    time.Time
	champion int
	rules    *rules
	seen     *collection
	from     map[string][]int64 // first offsets, by stream and partition
	records  int                // number of records that it has read
	lastErr  string

	looked   int       // number of records at the last sum; the next fields are of that sum
	lookedAt time.Time // its time
	sum      summary
	ready    bool             // whether it passes if the budget lets it
	refused  *tidemill.Clause // clause that refuses the candidate; nil if none does
	told     *api.Trial       // nil if it has to be made
}

func (r *runner) run(ctx context.Context) error {
	for ctx.Err() == nil {
		r.pace.begin()
		if err := r.refresh(ctx); err != nil {
			return err
		}
		more, err := r.advance(ctx)
		if err != nil {
			return err
		}
		if err := r.look(ctx); err != nil {
			return err
		}
		if !more {
			r.rest(ctx)
		}
	}
	return nil
}

// rest waits for new facts, and at most until the next look at the streams.
func (r *runner) rest(ctx context.Context) {
	tick := time.NewTimer(r.Every)
	defer tick.Stop()
	if len(r.trials) == 0 {
		tick.Stop()
	}
	select {
	case <-tick.C:
	case <-r.table.changed:
	case <-ctx.Done():
	}
}

// refresh begins and drops trials as the ledger has them.
func (r *runner) refresh(ctx context.Context) error {
	names, err := r.table.refresh(ctx)
	if errors.Is(err, ledger.ErrCatchingUp) {
		return retry.Sleep(ctx, r.Every)
	}
	if err != nil {
		return err
	}
	var fresh []*trial
	for _, name := range names {
		e := r.table.models[name]
		t := r.trials[name]
		if t != nil && (e == nil || e.onTest == nil || e.onTest.Number != t.v.Number || e.model.Champion != t.champion) {
			r.drop(name)
			t = nil
		}
		if t != nil || e == nil || e.onTest == nil || !r.serves(e) || e.model.Champion == 0 {
			continue
		}
		t, err := newTrial(e)
		if err != nil {
			r.Logger.Error("trials: the clauses of a trial cannot be read; the trial waits", "model", name, "version", e.onTest.Number, "reason", err)
			continue
		}
		fresh = append(fresh, t)
	}
	if len(fresh) == 0 {
		return nil
	}
	return r.begin(ctx, fresh)
}

// serves reports whether the trial is on this runner's scorer.
func (r *runner) serves(e *entry) bool {
	if on := e.onTest.Judge.Trial.Scorer; on != "" {
		return on == r.Scorer.Name
	}
	return r.Scorer.Serves(e.model.Name, e.model.Key)
}

func newTrial(e *entry) (*trial, error) {
	rules, err := newRules(*e.onTest.Judge.Trial)
	if err != nil {
		return nil, err
	}
	h := e.model.OnTrial()
	return &trial{v: e.onTest, began: h.Tried, champion: e.model.Champion, rules: rules, seen: newCollection(), looked: -1, sum: newCollection().sum(rules.Alpha)}, nil
}

// begin lets some trials read from the time on that they want. They read together.
func (r *runner) begin(ctx context.Context, fresh []*trial) error {
	since := time.Time{}
	for _, t := range fresh {
		at := firstTime(r.table.models[t.v.Model].model, t)
		if since.IsZero() || at.Before(since) {
			since = at
		}
		r.Logger.Info("trials: a candidate answers the stream", "scorer", r.Scorer.Name, "model", t.v.Model, "version", t.v.Number)
	}
	c, err := r.openCohort(ctx, broker.Since(since))
	if err != nil {
		return err
	}
	for _, t := range fresh {
		t.from = map[string][]int64{r.Scorer.To: slices.Clone(c.next[r.Scorer.To]), tidemill.StreamOutcomes: slices.Clone(c.next[tidemill.StreamOutcomes])}
		c.trials[t.v.Model], r.trials[t.v.Model] = t, t
	}
	r.cohorts = append(r.cohorts, c)
	return nil
}

// clocks is how much the clocks of two processes may differ.
const clocks = time.Minute

// firstTime returns the time from which a trial reads. Before its promotion the champion has answered nothing.
func firstTime(m *fold.Model, t *trial) time.Time {
	at := t.began.Add(-t.rules.Last)
	if n := len(m.Changes); n > 0 && m.Changes[n-1].Version == t.champion {
		if promoted := m.Changes[n-1].At.Add(-clocks); promoted.After(at) {
			at = promoted
		}
	}
	return at
}

func (r *runner) drop(model string) {
	delete(r.trials, model)
	for _, c := range r.cohorts {
		delete(c.trials, model)
	}
	r.dropEmpty()
}

func (r *runner) dropEmpty() {
	r.cohorts = slices.DeleteFunc(r.cohorts, func(c *cohort) bool { return len(c.trials) == 0 })
}

// look decides about all trials by what they have seen.
func (r *runner) look(ctx context.Context) error {
	now := time.Now()
	families := r.table.families(now)
	byRecipe := map[string][]*trial{}
	var all []api.Trial
	for _, t := range r.trials {
		if r.mustRead(t, now) {
			all = append(all, *r.standing(t, tidemill.TrialBudget{Level: t.rules.Alpha}))
			continue
		}
		if t.sumUp(now) {
			if err := r.pace.rest(ctx); err != nil {
				return err
			}
		}
		if len(t.seen.needed) > 0 {
			if err := r.conclude(ctx, t, t.rules.giveUp(t), tidemill.TrialBudget{Level: t.rules.Alpha}, now); err != nil {
				return err
			}
			continue
		}
		byRecipe[t.v.Recipe] = append(byRecipe[t.v.Recipe], t)
	}
	for recipe, some := range byRecipe {
		f := families[recipe]
		if f == nil { // the table has read the ends of all its trials
			continue
		}
		running, err := r.lookAt(ctx, some, f, now)
		if err != nil {
			return err
		}
		all = append(all, running...)
	}
	r.dropEmpty()
	if r.Told != nil && (len(all) > 0 || r.told) {
		r.told = len(all) > 0
		slices.SortFunc(all, func(a, b api.Trial) int { return cmp.Compare(a.Model, b.Model) })
		r.Told(ctx, all)
	}
	return nil
}

// mustRead reports whether a trial cannot be decided yet. While the candidate has to answer events, the figures are not those
// of the records that were read. A runner that begins late still reads all that came until then, but not for ever: the
// candidate may be unable to answer, or slower than the stream grows.
func (r *runner) mustRead(t *trial, now time.Time) bool {
	open, late := len(t.seen.needed) > 0, now.Sub(t.began)-t.rules.Until
	if late < 0 {
		return open
	}
	return (open || r.behind(t) > 0) && t.lastErr == "" && late < t.rules.Until
}

// sumEvery is the time between two sums of a trial for each of its events. A sum takes less than a hundredth of it.
const sumEvery = 100 * time.Microsecond

// sumUp sums up the records of a trial, if there are new ones and the last sum is old enough. It reports whether it
// has done so. Few trials have new records at each look.
func (t *trial) sumUp(now time.Time) bool {
	ending := now.Sub(t.began) >= t.rules.Until
	if t.records == t.looked || !ending && now.Sub(t.lookedAt) < sumEvery*time.Duration(len(t.seen.pairs)) {
		return false
	}
	t.sum, t.looked, t.lookedAt, t.told = t.seen.sum(t.rules.Alpha), t.records, now, nil
	t.ready, t.refused = t.rules.passes(&t.sum, t.rules.Alpha), t.rules.refuses(&t.sum, t.rules.Alpha)
	return true
}

// lookAt decides about the trials of one recipe, and returns those that go on.
func (r *runner) lookAt(ctx context.Context, some []*trial, f *family, now time.Time) (all []api.Trial, err error) {
	var ready []*trial
	for _, t := range some {
		if t.ready {
			ready = append(ready, t)
		}
	}
	slices.SortFunc(ready, func(a, b *trial) int { return cmp.Compare(a.v.Model, b.v.Model) })
	chosen, budget := f.choose(len(ready), func(i int, level float64) bool { return ready[i].rules.passes(&ready[i].sum, level) })
	promotes := map[*trial]bool{}
	for i, t := range ready {
		promotes[t] = chosen[i]
	}
	for _, t := range some {
		d := decision{}
		if promoted := promotes[t]; promoted || t.refused != nil || now.Sub(t.began) >= t.rules.Until {
			d = t.rules.decide(t.name(), t.champion, &t.sum, budget, promoted, now.Sub(t.began))
		} else {
			d = t.superseded(r.table.models[t.v.Model].model)
		}
		if d.outcome == "" {
			all = append(all, *r.standing(t, budget))
			continue
		}
		if err := r.conclude(ctx, t, d, budget, now); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (t *trial) name() string { return fmt.Sprintf("version %d of %s", t.v.Number, t.v.Model) }

// superseded ends a trial whose candidate has older data than the champion: it could not be promoted.
func (t *trial) superseded(m *fold.Model) (d decision) {
	h, c := m.OnTrial(), m.Find(m.Champion)
	if h != nil && c != nil && h.BeganBefore(c) {
		d.outcome = tidemill.TrialGivenUp
		d.sentence = fmt.Sprintf("%s: its trial is given up: version %d, which has newer data, is the champion", t.name(), c.Number)
	}
	return d
}

func (r *runner) standing(t *trial, b tidemill.TrialBudget) *api.Trial {
	if t.told == nil || t.told.Budget != b {
		lead := t.sum.leadAt(b.Level)
		t.told = &api.Trial{Model: t.v.Model, Version: t.v.Number, Recipe: t.v.Recipe, Key: t.v.Key, Scorer: r.Scorer.Name, Champion: t.champion, Began: t.began,
			Terms: t.rules.TrialTerms, TrialCounts: t.sum.TrialCounts, Lead: lead, P99: t.sum.p99, Budget: b, Clauses: t.rules.pass.JudgeStream(t.sum.figures(b.Level)),
			Steps: t.sum.steps, Text: Text(t.sum.TrialCounts, lead, t.champion)}
	}
	t.told.Behind, t.told.Error = r.behind(t), t.lastErr
	return t.told
}

// conclude proposes the end of a trial. If the champion has changed meanwhile, the trial begins again.
func (r *runner) conclude(ctx context.Context, t *trial, d decision, b tidemill.TrialBudget, now time.Time) error {
	verdict := tidemill.TrialVerdict{Scorer: r.Scorer.Name, Recipe: t.v.Recipe, Champion: t.champion, Began: t.began, Ended: now.UTC(), Outcome: d.outcome,
		Terms: t.rules.TrialTerms, Read: r.read(t), Sampled: t.sum.sampled, TrialCounts: t.sum.TrialCounts, Lead: t.sum.leadAt(b.Level), P99: t.sum.p99, Budget: b,
		Digest: t.seen.digest(), Steps: t.sum.steps}
	_, err := r.Registrar.Conclude(ctx, t.v, registry.Conclusion{Verdict: verdict, Clauses: d.clauses, Sentence: d.sentence})
	switch {
	case errors.Is(err, registry.ErrMoved), errors.Is(err, registry.ErrNoTrial):
		r.Logger.Info("trials: the end of a trial came too late; it is looked up again", "model", t.v.Model, "version", t.v.Number, "reason", err)
	case errors.Is(err, ledger.ErrCatchingUp):
		return nil // the next look proposes it again
	case err != nil:
		return err
	default:
		r.Logger.Info("trials: a trial has ended", "model", t.v.Model, "version", t.v.Number, "reason", d.sentence)
	}
	r.drop(t.v.Model)
	r.table.mark(t.v.Model)
	return nil
}
