package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
)

// agentFinish takes an attempt's last word. What it made is a tree before the
// log tells of it, and whether the word counts the log decides: of two who
// finish an attempt, its agent and a keeper that takes it for lost, the first on
// the log is heard. So the ledger need not be asked again before, and an agent
// that asks again, for it has not heard the answer, is told how its run stands
// if it was its word that counted.
func (g *Gateway) agentFinish(w http.ResponseWriter, r *request) *api.Problem {
	var said api.Finish
	if p := g.readSaid(r, &said); p != nil {
		return p
	}
	if !isUnderWay(r.attempt.run, r.attempt.number) {
		return g.finished(w, r, said.Outcome)
	}
	ctx, cancel := g.toTheEnd(r)
	defer cancel()
	fact, p := g.lastWord(ctx, r, &said)
	if p != nil {
		return p
	}
	g.awaitSight(ctx, r, &said)
	run, err := g.opt.Runs.Finish(ctx, r.attempt.run, r.attempt.number, fact)
	switch {
	case errors.Is(err, ledger.ErrCatchingUp):
		return g.unled(ctx, err)
	case err != nil:
		g.log.Warn("the end of an attempt cannot be told", "run", r.attempt.run.ID, "reason", err)
		return unavailable("the end of the attempt cannot be told now; say it again a little later: said twice it counts once")
	}
	r.attempt.run = run
	return g.finished(w, r, said.Outcome)
}

// finished answers according to what the log has of the attempt's end. That an
// attempt is lost is what others say of it; all else are its own words, or what
// they were worth: a success that made nothing for its dataset is a failure.
func (g *Gateway) finished(w http.ResponseWriter, r *request, said tidemill.Outcome) *api.Problem {
	a, ok := attemptOf(r.attempt.run, r.attempt.number)
	if !ok || a.Ended.IsZero() || a.Outcome == tidemill.OutcomeLost && said != tidemill.OutcomeLost {
		return g.superseded(r.attempt)
	}
	g.attempts.forget(r.attempt.name)
	writeJSON(w, http.StatusOK, api.Finished{State: r.attempt.run.State})
	return nil
}

// lastWord is the fact that an attempt's last word becomes.
func (g *Gateway) lastWord(ctx context.Context, r *request, said *api.Finish) (fact tidemill.RunFinished, p *api.Problem) {
	if p := badFinish(said); p != nil {
		return fact, p
	}
	said.Result.LastLines = endOf(said.Result.LastLines, mostLastLines)
	if p := tooMuchSaid(said); p != nil {
		return fact, p
	}
	tree, p := g.artifact(ctx, r, said.Files)
	if p != nil {
		return fact, p
	}
	fact = tidemill.RunFinished{Attempt: r.attempt.number, Outcome: said.Outcome, Reason: beginningOf(said.Reason, mostWhy), Permanent: said.Permanent,
		Where: said.Where, Result: said.Result}
	fact.Artifact, fact.Files, fact.Bytes = tree.Tree, tree.Files, tree.Bytes
	return fact, nil
}

// tooMuchSaid refuses what would be too large for a fact: the log would take it
// from nobody, and the run would never end.
func tooMuchSaid(said *api.Finish) *api.Problem {
	text, err := json.Marshal(struct {
		tidemill.Where
		tidemill.Result
	}{said.Where, said.Result})
	switch {
	case err != nil:
		return invalidRequest("what the attempt says of its end cannot be written: " + clip(err.Error()))
	case len(text) > api.MaxResult:
		return tooLarge(fmt.Sprintf("what an attempt says of its end may have %d bytes besides its files, and this has %d: tell fewer metrics", api.MaxResult, len(text)))
	}
	return nil
}

const (
	mostWhy       = 2 << 10
	mostLastLines = 16 << 10
)

// badFinish is what is wrong with a last word, if anything is.
func badFinish(said *api.Finish) *api.Problem {
	switch said.Outcome {
	case tidemill.OutcomeSucceeded, tidemill.OutcomeFailed, tidemill.OutcomeCancelled, tidemill.OutcomeLost, tidemill.OutcomeLeft:
		return nil
	}
	return invalidRequest(fmt.Sprintf("outcome: %q is none; give succeeded, failed, cancelled, left or lost", clip(string(said.Outcome))))
}

// artifact is the tree of what an attempt made; none if it made nothing.
func (g *Gateway) artifact(ctx context.Context, r *request, files []api.File) (tree api.TreeRef, p *api.Problem) {
	var plan tidemill.Plan
	if p := g.orderedPlan(r, &plan); p != nil || len(files) == 0 {
		return tree, p
	}
	if tree, p = g.treeOf(ctx, r, files); p == nil && plan.MaxOutput > 0 && tree.Bytes > plan.MaxOutput {
		p = tooLarge(fmt.Sprintf("the output of this run may have %d bytes, and this has %d: say that it failed by that", plan.MaxOutput, tree.Bytes))
	}
	return tree, p
}

// beginningOf is a text of which at most so many bytes are kept, at its
// beginning.
func beginningOf(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// endOf is a text of which at most so many bytes are kept, at its end.
func endOf(text string, most int) string {
	if len(text) <= most {
		return text
	}
	cut := len(text) - most
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++
	}
	return text[cut:]
}
