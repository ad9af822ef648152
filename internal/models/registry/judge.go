package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/triggers/commands"
)

// Finished registers and judges the result of a run, and announces the verdict. v is the run's
// run.finished; a second call changes nothing.
func (r *Registrar) Finished(ctx context.Context, v *broker.View) error {
	w, err := newWork(v)
	if err != nil || w == nil {
		return err
	}
	if err := r.finish(ctx, w); err != nil {
		return fmt.Errorf("register and judge what run %s made for model %s: %w", w.Run, w.Model, err)
	}
	return nil
}

// finish does the steps that the log lacks, because another process may have done some of them.
func (r *Registrar) finish(ctx context.Context, w *work) error {
	counts, err := r.isAccepted(ctx, w)
	if err != nil {
		return err
	}
	if !counts {
		r.log.Info("registrar: the attempt no longer counts; its version is skipped", "run", w.Run, "recipe", w.Recipe, "key", w.Key, "model", w.Model)
		return nil
	}
	m, err := r.register(ctx, w)
	if err != nil {
		return err
	}
	h := m.OfRun(w.Run)
	if h == nil {
		r.log.Info("registrar: a version came too late; it is not registered", "run", w.Run, "recipe", w.Recipe, "key", w.Key, "model", w.Model,
			"reason", "its run began before versions that are no longer stored, or its key is forgotten")
		return nil
	}
	number := h.Number
	ours, m, err := r.judge(ctx, w, m)
	if err != nil {
		return err
	}
	if m, err = r.announce(ctx, m, ours, func(o fold.Owed) bool { return o.Version == number }); err != nil {
		return err
	}
	return r.requestAgain(ctx, w, m, number)
}

// register publishes the version unless the log has it, and returns the model with it.
func (r *Registrar) register(ctx context.Context, w *work) (*fold.Model, error) {
	m, err := r.o.Ledger.Model(ctx, w.Model)
	if err != nil {
		return nil, fmt.Errorf("look up model %s: %w", w.Model, err)
	}
	if m.OfRun(w.Run) != nil {
		return m, nil
	}
	report, err := r.measure(ctx, w)
	if err != nil {
		return nil, err
	}
	tree, err := r.storeReport(ctx, report)
	if err != nil {
		return nil, err
	}
	w.report = report
	r.step(toRegister)
	_, m, err = r.publish(ctx, r.registeredFact(w, tree))
	return m, err
}

func (r *Registrar) registeredFact(w *work, report string) *fact {
	return &fact{typ: tidemill.TypeModelRegistered, id: tidemill.ID("registered", w.Model, w.Run), source: r.o.Names.Source(byPromote),
		model: w.Model, key: w.Key, recipe: w.Recipe, run: w.Run, chain: w.chain,
		data: tidemill.ModelRegistered{Artifact: w.result.Artifact, Bytes: w.result.Bytes, Files: w.result.Files, Report: report,
			Metrics: chosenMetrics(w.report.Metrics, w.Judge.Gate), Judge: w.Judge, Origin: w.Origin}}
}

// mostTurns limits how often a version is judged again because the champion has changed since it
// was read. More changes in so short a time are not a race.
const mostTurns = 20

var errTurns = errors.New("the champion changes faster than anything can be proposed; it is tried again")

// judge proposes verdicts until the version has one, and returns the last proposal.
func (r *Registrar) judge(ctx context.Context, w *work, m *fold.Model) (publishedFact, *fold.Model, error) {
	var last publishedFact
	for range mostTurns {
		h := m.OfRun(w.Run)
		if h == nil || h.State != tidemill.VersionRegistered {
			return last, m, nil
		}
		f, err := r.judgedFact(ctx, w, m, h)
		if err != nil {
			return publishedFact{}, nil, err
		}
		r.step(toPropose)
		if last, m, err = r.publish(ctx, f); err != nil {
			return publishedFact{}, nil, err
		}
	}
	return publishedFact{}, nil, fmt.Errorf("propose version %d: %w", m.Last, errTurns)
}

// judgedFact returns a version's verdict against the champion that was read. The log accepts the
// verdict only while that version is the champion.
func (r *Registrar) judgedFact(ctx context.Context, w *work, m *fold.Model, h *fold.Held) (*fact, error) {
	g, err := gate.Compile(w.Judge.Gate)
	if err != nil {
		return nil, hopelessf("read the gate that the run began with: %w; if a newer version of Tidemill has written it, replay this where that runs", err)
	}
	facts, err := r.facts(ctx, w, m, h)
	if err != nil {
		return nil, err
	}
	j := g.Judge(m.Name, h.Number, facts)
	action := tidemill.ActionJudge
	if j.Passed {
		j.Hold = lackReason(facts.Report.Trial)
		if w.Judge.Trial != nil && m.Champion != 0 && j.Hold == "" {
			action = tidemill.ActionTry
		}
		if action == tidemill.ActionJudge {
			j.Hold = cmp.Or(j.Hold, holdReason(w.Judge.Promote, &w.Origin, r.o.Asked()))
		}
	}
	var canary *tidemill.Canary
	if j.Passed && m.Champion != 0 {
		canary = w.Judge.Canary
	}
	return &fact{typ: tidemill.TypeModelPromotionProposed, id: tidemill.ID("judged", m.Name, w.Run, strconv.FormatInt(m.Turn, 10)),
		source: r.o.Names.Source(byPromote), model: m.Name, key: m.Key, version: h.Number, recipe: w.Recipe, run: w.Run, chain: w.chain,
		data: tidemill.PromotionProposed{Action: action, Version: h.Number, Run: w.Run, Basis: m.Champion, Turn: m.Turn,
			Hold: j.Hold, Canary: canary, Judgement: &j, Origin: &w.Origin, Artifact: w.result.Artifact}}, nil
}

// facts returns the facts by which the gate decides.
func (r *Registrar) facts(ctx context.Context, w *work, m *fold.Model, h *fold.Held) (gate.Facts, error) {
	f := gate.Facts{Origin: w.Origin, Seconds: commandTook(w.result.Stages), Bytes: w.result.Bytes, Files: w.result.Files, GPU: w.result.GPUSeconds,
		PeakMemory: w.result.PeakMemory, Champion: m.Champion, On: w.Judge.On}
	if w.Champion != nil {
		f.Given = w.Champion.Version
	}
	report, err := r.versionReport(ctx, w, h.Number)
	if err != nil {
		return f, err
	}
	f.Report = *report
	if m.Champion == 0 || w.Judge.On != tidemill.GateOnRecorded {
		return f, nil
	}
	recorded, err := r.reportOf(ctx, m.Name, m.Champion)
	f.Recorded = recorded
	return f, err
}

// versionReport returns the report of the version at work. If another process has registered the
// version, the report is read from the store.
func (r *Registrar) versionReport(ctx context.Context, w *work, number int) (_ *tidemill.Report, err error) {
	if w.report == nil {
		w.report, err = r.reportOf(ctx, w.Model, number)
	}
	return w.report, err
}

func commandTook(stages []tidemill.Stage) float64 {
	for _, s := range stages {
		if s.Name == "run" {
			return s.Seconds
		}
	}
	return 0
}

// holdReason returns why a version that has passed waits for a person; empty if the version need
// not wait.
func holdReason(promote tidemill.Promote, of *tidemill.Origin, asked *commands.State) string {
	if p, frozen := asked.PromotionsFrozen(of.Recipe); frozen {
		by := p.By
		if by == "" {
			by = "anonymous"
		}
		return "promotions are frozen by " + by + " since " + p.Since.UTC().Format(time.RFC3339)
	}
	if asked.GivenUp(of.Rollout) {
		return "rollout " + of.Rollout + ", in which its run took part, was stopped or aborted"
	}
	if promote == tidemill.PromoteManual {
		return "recipe " + of.Recipe + " has people promote (promote: manual)"
	}
	return ""
}

// lackReason returns why a version waits although its model may be good: it cannot be run before
// something is installed. It is empty if nothing is missing.
func lackReason(t *tidemill.ServingCheck) string {
	if t == nil || t.Missing == "" {
		return ""
	}
	return gate.ServedBy(t) + " cannot run its model yet: " + t.Missing
}

// record returns a version that is kept; nil if it is not kept.
func (r *Registrar) record(ctx context.Context, model string, number int) (*ledger.VersionRecord, error) {
	all, err := r.o.Ledger.Versions(ctx, model, number)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", tidemill.VersionName(model, number), err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return &all[0], nil
}

// requestAgain asks for another run if the version was refused because it was measured against a
// champion that has been replaced: the newest data must not be lost to a race. A newer version has
// newer data.
func (r *Registrar) requestAgain(ctx context.Context, w *work, m *fold.Model, number int) error {
	h := m.Find(number)
	if r.o.Again == nil || h == nil || h.State != tidemill.VersionRefused || hasNewer(m, h) {
		return nil
	}
	v, err := r.record(ctx, m.Name, number)
	if err != nil || v == nil || v.Judgement == nil || !lostRace(v.Judgement, w.Judge.On) {
		return err
	}
	report, err := r.versionReport(ctx, w, number)
	if err != nil || w.Champion != nil && report.Champion == nil {
		return err // its trainer measures no champion, and would not do so the next time
	}
	if there, err := r.hasArtifact(ctx, m.Name, m.Champion); err != nil || !there {
		return err // a run would be given no champion again, and would be asked for again without end
	}
	err = r.o.Again(ctx, Lost{Run: w.Run, Cause: w.chain.cause, Correlation: w.chain.correlation, Trace: w.chain.trace})
	if err != nil {
		return fmt.Errorf("ask for run %s again, whose version %d was measured against a champion that has been replaced: %w", w.Run, number, err)
	}
	return nil
}

// hasArtifact reports whether the files of a version are in the store, so that a run
// can be given them.
func (r *Registrar) hasArtifact(ctx context.Context, model string, number int) (bool, error) {
	v, err := r.record(ctx, model, number)
	if err != nil || v == nil {
		return false, err
	}
	_, err = r.o.Store.TreeRef(ctx, v.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the files of %s: %w", tidemill.VersionName(model, number), err)
	}
	return true, nil
}

// hasNewer reports whether there is a version whose run began later.
func hasNewer(m *fold.Model, than *fold.Held) bool {
	return slices.ContainsFunc(m.Versions, func(h fold.Held) bool { return than.BeganBefore(&h) })
}

// lostRace reports whether a version was refused only because the champion has changed since its
// run was given one to measure. Clauses that failed without the champion would fail again.
func lostRace(j *tidemill.Judgement, on tidemill.GateOn) bool {
	if j.Passed || j.Against == 0 || j.Beside == j.Against || on == tidemill.GateOnRecorded {
		return false
	}
	failed := 0
	for _, c := range j.Clauses {
		switch {
		case c.Passed:
		case !namesChampion.MatchString(c.Text):
			return false
		default:
			failed++
		}
	}
	return failed > 0
}

// namesChampion matches clauses that compare with a champion.
var namesChampion = regexp.MustCompile(`\bchampion\b`)

// Retire ends a model whose key was forgotten. After that, versions of runs that began before the
// marks are refused, whichever process registers them. A second call changes nothing.
func (r *Registrar) Retire(ctx context.Context, model, key, by, reason string, cause tidemill.Cause, asked time.Time, marks []tidemill.Mark) error {
	m, err := r.o.Ledger.Model(ctx, model)
	if err != nil {
		return fmt.Errorf("retire model %s: %w", model, err)
	}
	if isRetired(m, marks) {
		return nil
	}
	_, _, err = r.publish(ctx, &fact{typ: tidemill.TypeModelRetired, id: tidemill.ID("retired", model, cause.Source, cause.ID), source: r.o.Names.Source(byForget),
		model: model, key: key, recipe: m.Recipe, by: by, chain: chain{cause: cause, correlation: cause.ID},
		data: tidemill.ModelRetired{Asked: asked, Reason: reason, Marks: marks}})
	return err
}

// isRetired reports whether a model is retired already, up to the marks.
func isRetired(m *fold.Model, marks []tidemill.Mark) bool {
	if m.Retired.IsZero() || len(m.Versions) > 0 {
		return false
	}
	return !slices.ContainsFunc(marks, func(at tidemill.Mark) bool { return !m.HasFloor(at) })
}
