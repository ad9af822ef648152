package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// trialModels is the number of models that are on trial: those with the most events.
const trialModels = 10

// trialBench scores at a fixed rate. In every second window, candidates of some models are on trial.
type trialBench struct {
	*scoreBench
	states *status.Trials
	number int              // number of the newest candidate of each model
	tried  int              // events that candidates have answered
	pids   []int            // processes whose CPU time counts
	used   time.Duration    // their CPU time until the beginning of the window
	cpu    [2]time.Duration // their CPU time in windows without and with trials
}

// trialWindows are the latencies of windows without trials and of the ones with trials that follow them.
type trialWindows struct{ without, with []sample }

// measureTrials measures a scorer next to trials: those of its process, as on a laptop, and those of an observer's
// process.
func (w *scoreBench) measureTrials(ctx context.Context, o *scoreOutcome) error {
	cluster, err := w.st.b.Cluster(ctx)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: w.server.addrs[1]})
	defer client.Close()
	t := &trialBench{scoreBench: w, states: status.NewTrials(client, w.st.names, cluster), number: 1}
	for _, where := range []struct{ name, scorer, observer string }{
		{"in its process", partsBoth, ""}, {"in an observer", "", partsObserver}} {
		t.tried, t.cpu = 0, [2]time.Duration{}
		all, err := t.measure(ctx, o, where.scorer, where.observer)
		if err != nil {
			return fmt.Errorf("a trial %s: %w", where.name, err)
		}
		o.Figures["p99 with / without, "+where.name] = all.ratio(0.99)
		o.Notes = append(o.Notes, fmt.Sprintf("trials %s: p50 with / without %.2f, p90 %.2f", where.name, all.ratio(0.5), all.ratio(0.9)))
		o.Notes = append(o.Notes, fmt.Sprintf("trials %s: p50 %s without and %s with, p99 %s without and %s with; %d events answered by candidates; "+
			"CPU of scorer, observer and broker %s without and %s with", where.name,
			micros(medianQuantile(all.without, 0.5)), micros(medianQuantile(all.with, 0.5)), micros(medianQuantile(all.without, 0.99)), micros(medianQuantile(all.with, 0.99)), t.tried, t.cpu[0], t.cpu[1]))
		if t.tried == 0 {
			return fmt.Errorf("a trial %s: no candidate has answered an event", where.name)
		}
	}
	return nil
}

func medianQuantile(all []sample, q float64) time.Duration {
	var some sample
	for _, s := range all {
		some = append(some, s.quantile(q))
	}
	return some.sorted().quantile(0.5)
}

// ratio returns the median ratio of a quantile in windows that follow each other.
func (t *trialWindows) ratio(q float64) float64 {
	var with, without []float64
	for i := range t.with {
		with, without = append(with, float64(t.with[i].quantile(q))), append(without, float64(t.without[i].quantile(q)))
	}
	return medianRatio(with, without)
}

// measure scores all events with one scorer. The observer is a part of the scorer's process or another process.
func (t *trialBench) measure(ctx context.Context, o *scoreOutcome, scorer, observer string) (all trialWindows, err error) {
	t.places = &offsetEvents{}
	windows := 2 * t.scorePlan.rounds
	t.Events = windows * t.Seconds * t.Rate
	s, err := t.startParts(ctx, scorer)
	if err != nil {
		return all, err
	}
	stop := s.stop
	t.pids = []int{t.server.cmd.Process.Pid, s.cmd.Process.Pid}
	if observer != "" {
		t.rounds-- // it observes the same scorer
		apart, err := t.startParts(ctx, observer)
		if err != nil {
			return all, errors.Join(err, s.stop())
		}
		t.pids = append(t.pids, apart.cmd.Process.Pid)
		stop = func() error { return errors.Join(apart.stop(), s.stop()) }
	}
	track, err := t.trackWindows(ctx, s)
	if err := errors.Join(err, stop()); err != nil {
		return all, err
	}
	a, err := t.newAudit()
	if err == nil {
		err = a.checkStream(ctx, s.out)
	}
	if err != nil {
		return all, err
	}
	a.counts.addCounts(o, a.first)
	per := t.Seconds * t.Rate
	for i := range windows {
		one := track.came[i*per+per/4 : (i+1)*per].sorted() // a trial needs a moment to begin or to end
		if i%2 == 0 {
			all.without = append(all.without, one)
		} else {
			all.with = append(all.with, one)
		}
	}
	if err := errors.Join(t.st.remove(ctx, s.out), t.st.remove(ctx, inStream)); err != nil {
		return all, err
	}
	return all, t.makeStreams(ctx) // the next scorer reads from the beginning
}

// trackWindows publishes and follows all events, and begins and ends the trials between the windows.
func (t *trialBench) trackWindows(ctx context.Context, s *scorerProcess) (*scoreTrack, error) {
	begun := make(chan int, 2*t.scorePlan.rounds)
	failed := make(chan error, 1)
	go func() {
		for window := range begun {
			if err := errors.Join(t.count(window), t.begin(ctx, window%2 == 1)); err != nil {
				failed <- err
				return
			}
		}
		failed <- errors.Join(t.count(2*t.scorePlan.rounds), t.begin(ctx, false))
	}()
	track, err := t.track(ctx, s, func(i int) {
		if i%(t.Seconds*t.Rate) == 0 {
			begun <- i / (t.Seconds * t.Rate)
		}
	})
	close(begun)
	return track, errors.Join(err, <-failed)
}

// count adds the CPU time of the window before this one.
func (t *trialBench) count(window int) error {
	sum := time.Duration(0)
	for _, pid := range t.pids {
		p, err := task.ReadProcess(pid)
		if err != nil {
			return err
		}
		sum += p.CPU
	}
	if window > 0 {
		t.cpu[(window-1)%2] += sum - t.used
	}
	t.used = sum
	return nil
}

// begin begins a window. At the end of one with trials, it counts what the candidates have answered.
func (t *trialBench) begin(ctx context.Context, trials bool) error {
	if !trials && t.number > 1 {
		all, err := t.states.Read(ctx)
		if err != nil {
			return err
		}
		for i := range all {
			t.tried += all[i].Answered
		}
	}
	if trials {
		t.number++
	}
	for key := range trialModels {
		if t.number == 1 {
			break
		}
		tree, err := t.putVersion(ctx, key, t.number)
		if err != nil {
			return err
		}
		v := t.version(key, t.number, tree)
		facts := []broker.View{v.concluded()}
		if trials {
			facts = []broker.View{v.onTrial(scorerName(t.rounds), t.Seconds), v.tried()}
		}
		if err := t.writeFacts(ctx, facts...); err != nil {
			return err
		}
	}
	return t.facts.Flush(ctx)
}

// onTrial registers a version whose recipe has a trial that never decides.
func (v loadVersion) onTrial(scorer string, seconds int) broker.View {
	terms := &tidemill.TrialTerms{Scorer: scorer, Last: time.Duration(seconds) * time.Second, Until: 24 * time.Hour, Pass: []string{"stream.errors > 1000000"}, AtLeast: 1, Alpha: 0.05}
	return v.fact(tidemill.TypeModelRegistered, tidemill.ModelRegistered{Artifact: v.tree.Tree, Bytes: v.tree.Bytes, Files: v.tree.Files, Report: v.tree.Tree,
		Judge: tidemill.Judge{On: tidemill.GateOnRecorded, Promote: tidemill.PromoteAuto, Keep: 1000, Trial: terms}, Origin: v.origin()})
}

func (v loadVersion) tried() broker.View {
	return v.beside(tidemill.ActionTry, tidemill.Judgement{Passed: true, Sentence: "it is measured with"})
}

func (v loadVersion) concluded() broker.View {
	return v.beside(tidemill.ActionConclude, tidemill.Judgement{Sentence: "it was measured with",
		Trial: &tidemill.TrialVerdict{Recipe: "load", Champion: 1, Outcome: tidemill.TrialGivenUp}})
}

// beside returns a proposal about a version next to the first one, which is the champion.
func (v loadVersion) beside(action tidemill.Action, j tidemill.Judgement) broker.View {
	origin := v.origin()
	f := v.fact(tidemill.TypeModelPromotionProposed, nil)
	f.ID = tidemill.ID(string(action), fleet.Model(v.key), fmt.Sprint(v.number))
	f.Data, _ = json.Marshal(tidemill.PromotionProposed{Action: action, Version: v.number, Run: v.run(), Basis: 1, Turn: 1, Artifact: v.tree.Tree, Origin: &origin, Judgement: &j})
	return f
}
