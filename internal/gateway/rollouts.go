package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/trials"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
)

// rolloutTable lists the routes of rollouts.
func (g *Gateway) rolloutTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/rollouts", role: access.Read, handle: g.listRollouts},
		{method: http.MethodGet, path: "/api/v1/rollouts/{recipe}", role: access.Read, handle: g.showRollout},
		{method: http.MethodPost, path: "/api/v1/rollouts/{recipe}/pause", role: access.Approve, handle: g.pauseRollout},
		{method: http.MethodPost, path: "/api/v1/rollouts/{recipe}/resume", role: access.Approve, handle: g.resumeRollout},
		{method: http.MethodPost, path: "/api/v1/rollouts/{recipe}/abort", role: access.Approve, handle: g.abortRollout},
	}
}

// listRollouts answers with the recipes that have rollouts.
func (g *Gateway) listRollouts(w http.ResponseWriter, r *request) *api.Problem {
	f, p := g.commandLog(r.Context())
	if p != nil {
		return p
	}
	all := api.Rollouts{Rollouts: []api.Rollout{}}
	for _, recipe := range g.opt.Config().Recipes {
		if recipe.Rollout == nil {
			continue
		}
		shown, p := g.rolloutOf(r, &recipe, f.Now().Rollout(recipe.Name))
		if p != nil {
			return p
		}
		all.Rollouts = append(all.Rollouts, shown)
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// showRollout answers with the rollout of one recipe.
func (g *Gateway) showRollout(w http.ResponseWriter, r *request) *api.Problem {
	recipe, f, p := g.rolloutAsked(r)
	if p != nil {
		return p
	}
	shown, p := g.rolloutOf(r, &recipe, f.Now().Rollout(recipe.Name))
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, shown)
	return nil
}

// rolloutAsked returns the recipe of a request, which must have rollouts, and the commands.
func (g *Gateway) rolloutAsked(r *request) (config.Recipe, *commands.Follower, *api.Problem) {
	recipe, known := g.opt.Config().Recipe(r.value)
	if !known || recipe.Rollout == nil {
		return recipe, nil, g.unknownRecipe(r.value)
	}
	f, p := g.commandLog(r.Context())
	return recipe, f, p
}

func (g *Gateway) rolloutOf(r *request, recipe *config.Recipe, s *commands.Rollout) (api.Rollout, *api.Problem) {
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	c := recipe.Rollout
	shown := api.Rollout{Recipe: recipe.Name, State: api.RolloutNone, Keys: c.Keys, Hold: c.Hold.String(), Stop: c.Stop}
	standing, err := g.opt.Rollouts.Read(ctx, recipe.Name)
	if err != nil {
		return shown, g.ledgerProblem(r.Context(), err)
	}
	if s != nil {
		addRollout(&shown, s)
	}
	if r.caller.AllKeys(access.Read) {
		shown.Cohorts = g.cohorts(ctx, recipe)
	}
	if standing != nil && (s == nil || !s.Open() || standing.Rollout == s.Name()) {
		addStanding(&shown, standing, r.caller.AllKeys(access.Read))
	}
	return shown, nil
}

// cohorts counts the known keys up to each share of a recipe's rollouts; nil if they cannot be read now.
func (g *Gateway) cohorts(ctx context.Context, recipe *config.Recipe) []int {
	if g.opt.Ledger == nil {
		return nil
	}
	fleet, err := g.opt.Ledger.Fleet(ctx)
	if err != nil {
		return nil
	}
	counts := make([]int, len(recipe.Rollout.Keys))
	for _, key := range fleet.All(recipe.Name) {
		for i, share := range recipe.Rollout.Keys {
			if tidemill.TakesPart(recipe.Name, key.Key, share) {
				counts[i]++
			}
		}
	}
	return counts
}

func addRollout(shown *api.Rollout, s *commands.Rollout) {
	shown.Share, shown.By, shown.Reason, shown.Figures, shown.RolledBack, shown.Last = s.Share, s.By, s.Reason, s.Figures, s.Back, string(s.Last)
	if s.Number > 0 {
		shown.Rollout, shown.Began = s.Name(), timeOrNil(s.Began)
	}
	if s.Open() {
		shown.State = api.RolloutState(s.State)
		shown.RolledBack = 0
	}
	shown.Since, shown.LastAt = timeOrNil(s.Since), timeOrNil(s.LastAt)
}

// addStanding adds the figures of the active controller. The names of models are for callers that may read all keys.
func addStanding(shown *api.Rollout, now *status.Rollout, names bool) {
	shown.Wait = now.Wait
	if now.Rollout == "" {
		return
	}
	shown.Figures, shown.RolledBack, shown.Remaining, shown.Left = now.Figures, now.Back, now.Todo, now.Left
	if names {
		shown.Why = now.Why
	}
}

func timeOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// rolloutChange is a command about a rollout.
type rolloutChange struct {
	words func(s *commands.Rollout) string // the change in words; empty if it changes nothing
	none  string                           // the reason why it changes nothing
	act   func(commands.Author, string, string, string) (broker.View, error)
}

// pauseRollout keeps further keys from taking part.
func (g *Gateway) pauseRollout(w http.ResponseWriter, r *request) *api.Problem {
	return g.changeRollout(w, r, rolloutChange{func(s *commands.Rollout) string {
		if s.State != commands.RolloutRunning {
			return ""
		}
		return s.Name() + " stays at " + shareText(s.Share) + " of the keys, and still stops by itself"
	}, "has no rollout that advances", commands.Author.PauseRollout})
}

// resumeRollout continues a rollout that is paused or has stopped, and permits another one of a way that was aborted.
func (g *Gateway) resumeRollout(w http.ResponseWriter, r *request) *api.Problem {
	return g.changeRollout(w, r, rolloutChange{func(s *commands.Rollout) string {
		switch {
		case s.State == commands.RolloutPaused:
			return s.Name() + " continues with " + shareText(s.Share) + " of the keys, and holds that share from the beginning"
		case s.State == commands.RolloutStopped:
			return s.Name() + " continues with " + shareText(s.Share) + " of the keys, and its evidence begins again"
		case !s.Open() && s.Refused != "":
			return "another rollout of the change that " + s.Name() + " brought may begin"
		}
		return ""
	}, "has no rollout that waits", commands.Author.ResumeRollout})
}

// abortRollout ends a rollout and rolls its keys back.
func (g *Gateway) abortRollout(w http.ResponseWriter, r *request) *api.Problem {
	return g.changeRollout(w, r, rolloutChange{func(s *commands.Rollout) string {
		if !s.Open() || s.State == commands.RolloutAborting {
			return ""
		}
		return s.Name() + " ends, the models that it has promoted in " + shareText(s.Share) + " of the keys go back, and new runs of all keys take the way before"
	}, "has no open rollout", commands.Author.AbortRollout})
}

// rolloutWords describes a command about a rollout, or a decision of a controller.
func rolloutWords(c *commands.Command, verb string) string {
	var d tidemill.RolloutData
	_ = json.Unmarshal(c.Data, &d) // then it has only its recipe
	switch text := "rollout " + orElse(d.Rollout, "of recipe "+c.Subject) + " " + verb; {
	case d.Result != "":
		return text + ": " + string(d.Result)
	case c.Type == tidemill.TypeRolloutBegun, c.Type == tidemill.TypeRolloutAdvanced:
		return text + " with " + shareText(d.Share) + " of the keys"
	default:
		return text
	}
}

// shareText writes a share of the keys, such as 10 %.
func shareText(share float64) string { return strconv.FormatFloat(100*share, 'g', 4, 64) + " %" }

func (g *Gateway) changeRollout(w http.ResponseWriter, r *request, change rolloutChange) *api.Problem {
	var ask api.RolloutAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if len(ask.Reason) > mostReason {
		return badParameter("reason", fmt.Sprintf("it has %d bytes: use at most %d", len(ask.Reason), mostReason))
	}
	if !r.caller.AllKeys(access.Approve) {
		return forbidden("a rollout is for all keys, and you may approve only for some: use a token for all keys")
	}
	recipe, _, p := g.rolloutAsked(r)
	if p != nil {
		return p
	}
	f, p := g.currentCommands(r.Context())
	if p != nil {
		return p
	}
	s := f.Now().Rollout(recipe.Name)
	done := api.Rested{Name: recipe.Name, Done: "recipe " + recipe.Name + " " + change.none + ": nothing changes"}
	if s != nil {
		if words := change.words(s); words != "" {
			done.Changed, done.Done = true, words
		}
	}
	if done.Changed && !ask.DryRun {
		v, err := change.act(g.commandAuthor(r), recipe.Name, s.Name(), ask.Reason)
		if err != nil {
			return invalidRequest(err.Error())
		}
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// Rejudge computes the verdict of a trial again.
type Rejudge func(ctx context.Context, v *ledger.VersionRecord) (trials.Recomputed, error)

// listTrials answers with a page of the trials that are running.
func (g *Gateway) listTrials(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"after", "key", "limit", "model", "recipe"})
	if p != nil {
		return p
	}
	limit, p := limitOf(values, status.MostTrials, status.MostTrials)
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	all, err := g.opt.Trials.Read(ctx)
	if err != nil {
		return unavailable("the states of the trials cannot be read now: " + err.Error() + "; try again later")
	}
	seen := seenBy(r.caller, access.Read)
	all = slices.DeleteFunc(all, func(t api.Trial) bool {
		model, recipe, key := values.Get("model"), values.Get("recipe"), values.Get("key")
		return model != "" && t.Model != model || recipe != "" && t.Recipe != recipe || key != "" && t.Key != key || seen != nil && !seen(t.Recipe, t.Key)
	})
	list := api.TrialList{Trials: []api.Trial{}, Total: len(all)}
	for _, t := range all {
		if t.Model <= values.Get("after") {
			continue
		}
		if len(list.Trials) == limit {
			list.Next = list.Trials[limit-1].Model
			break
		}
		list.Trials = append(list.Trials, t)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// listEndedTrials answers with a page of the trials that have ended.
func (g *Gateway) listEndedTrials(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"after", "key", "limit", "model", "recipe"})
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostOnOne, usualPage)
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	page, err := g.opt.Ledger.EndedTrials(ctx, ledger.TrialQuery{Recipe: values.Get("recipe"), Key: values.Get("key"), Model: values.Get("model"),
		Seen: seenBy(r.caller, access.Read), After: values.Get("after"), Limit: limit})
	switch {
	case errors.Is(err, ledger.ErrNoPlace):
		return badParameter("after", err.Error())
	case err != nil:
		return g.ledgerProblem(r.Context(), err)
	}
	list := api.EndedTrials{Trials: []api.EndedTrial{}, Next: page.Next}
	for i := range page.Trials {
		list.Trials = append(list.Trials, endedTrial(&page.Trials[i]))
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func endedTrial(t *ledger.EndedTrial) api.EndedTrial {
	shown := api.EndedTrial{Model: t.Model, Version: t.Version, Recipe: t.Recipe, Key: t.Key, Ended: t.At, Passed: t.Level > 0}
	if t.Record == nil {
		return shown
	}
	shown.State = t.Record.State
	if j := t.Record.Judgement; j != nil {
		shown.Text = j.Sentence
		if j.Trial != nil {
			shown.Verdict, shown.Clauses = j.Trial, j.Clauses
		}
	}
	return shown
}

// addTrial adds the state of a version's trial. It is left out if it is not known.
func (g *Gateway) addTrial(ctx context.Context, shown *api.ModelVersion) {
	if shown.State != tidemill.VersionTrial || g.opt.Trials == nil {
		return
	}
	all, err := g.opt.Trials.Read(ctx)
	if err != nil {
		return
	}
	i := slices.IndexFunc(all, func(t api.Trial) bool { return t.Model == shown.Model && t.Version == shown.Number })
	if i >= 0 {
		shown.OnTrial = &all[i]
	}
}

// rejudge answers with the verdict of a trial, computed again from the streams.
func (g *Gateway) rejudge(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"model", "version"})
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	m, p := g.findModel(ctx, r, access.Read, values.Get("model"))
	if p != nil {
		return p
	}
	n, p := versionOf(m, values.Get("version"))
	if p != nil {
		return p
	}
	found, err := g.opt.Ledger.Versions(ctx, m.Name, n)
	switch {
	case err != nil:
		return g.ledgerProblem(r.Context(), err)
	case len(found) == 0:
		return unknownModel(m.Name)
	case g.opt.Rejudge == nil:
		return noScoring()
	}
	again, err := g.opt.Rejudge(ctx, &found[0])
	switch {
	case errors.Is(err, trials.ErrNoVerdict), errors.Is(err, trials.ErrExpired):
		return badParameter("version", err.Error())
	case err != nil:
		return unavailable("the verdict cannot be computed again now: " + err.Error() + "; try again later")
	}
	differs := again.Differs
	if differs == nil {
		differs = []string{}
	}
	writeJSON(w, http.StatusOK, api.Rejudged{Model: m.Name, Version: n, Recorded: again.Recorded, Again: again.Verdict, Differs: differs})
	return nil
}
