package seed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/models/evidence"
	"tidemill.dev/internal/models/trials"
	"tidemill.dev/triggers/commands"
)

func trialTerms() *tidemill.TrialTerms {
	return &tidemill.TrialTerms{Scorer: "intents", Last: 6 * time.Hour, Until: 48 * time.Hour, Pass: []string{"stream.lead.low > 0", "stream.errors == 0", "stream.p99 < 20"},
		Refuse: []string{"stream.lead.high < 0", "stream.disagree > 0.5"}, AtLeast: 500, Alpha: 0.05}
}

// madeTrial makes up the evidence of a trial whose candidate has a lead.
func madeTrial(r *rand.Rand, labelled int, lead float64) (t tidemill.TrialVerdict) {
	t = tidemill.TrialVerdict{Scorer: "intents", Recipe: "intent", Terms: *trialTerms(), Read: []tidemill.TrialRange{}, Budget: tidemill.TrialBudget{Trials: 120, Promoted: 31, Level: 0.05 * 31 / 120}}
	t.Labelled, t.Votes, t.Answered, t.P99 = labelled, labelled, labelled*3+r.IntN(900), 2+float64(r.IntN(60))/10
	t.Agreed = t.Answered - int(float64(t.Answered)*(0.06+r.Float64()*0.08))
	seen := evidence.NewLead(t.Terms.Alpha)
	for i := range labelled {
		switch x := r.Float64(); {
		case x < 0.04+lead:
			t.Wins++
			seen.Add("", true, false)
		case x < 0.08+lead:
			t.Losses++
			seen.Add("", false, true)
		default:
			seen.Add("", true, true)
		}
		if (i+1)*tidemill.TrialSteps/labelled > i*tidemill.TrialSteps/labelled {
			t.Steps = append(t.Steps, tidemill.TrialStep{Labelled: i + 1, Won: seen.Won, Lost: seen.Lost, Tied: seen.Tied})
		}
	}
	t.Lead.Low, t.Lead.Value, t.Lead.High = seen.Bounds()
	seen.Alpha = t.Budget.Level
	t.Lead.Low, _, _ = seen.Bounds()
	return t
}

// clauses are those of the terms for a promotion.
func clausesOf(t *tidemill.TrialVerdict) []tidemill.Clause {
	return []tidemill.Clause{{Text: t.Terms.Pass[0], Passed: t.Lead.Low > 0, Values: map[string]float64{"stream.lead.low": t.Lead.Low}},
		{Text: t.Terms.Pass[1], Passed: t.Errors == 0, Values: map[string]float64{"stream.errors": float64(t.Errors)}}, {Text: t.Terms.Pass[2], Passed: t.P99 < 20, Values: map[string]float64{"stream.p99": t.P99}}}
}

// try writes the beginning of a trial, and its end if the fate is tried.
func (h *history) try(j *tidemill.Judgement) {
	h.propose(tidemill.PromotionProposed{Action: tidemill.ActionTry, Version: h.last, Run: h.run, Judgement: j}, tidemill.TypeTrialBegun, "")
	if h.fate != tried {
		return
	}
	labelled, lead, typ := 900+h.r.IntN(900), 0.05, tidemill.TypeModelPromoted
	if h.r.IntN(2) == 0 {
		lead, typ = -0.03, tidemill.TypeModelRefused
	}
	t := madeTrial(h.r, labelled, lead)
	t.Champion, t.Began, t.Digest = h.champion, h.at, strings.Repeat(fmt.Sprintf("%02x", h.r.IntN(256)), 32)
	h.pass(5 * time.Hour)
	t.Ended, t.Outcome = h.at, tidemill.TrialPassed
	for p := range 4 {
		t.Read = append(t.Read, tidemill.TrialRange{Stream: "scored", Partition: int32(p), From: 1000, To: 1000 + int64(t.Answered/4)})
	}
	end := tidemill.Judgement{Passed: lead > 0, Against: h.champion, Clauses: clausesOf(&t), Sentence: fmt.Sprintf("version %d of %s passes its trial: %s", h.last, h.model, trials.Text(t.TrialCounts, t.Lead, t.Champion))}
	if lead < 0 {
		t.Outcome = tidemill.TrialRefused
		end.Sentence = fmt.Sprintf("version %d of %s is refused by its trial: stream.lead.high is below 0; %s", h.last, h.model, trials.Text(t.TrialCounts, t.Lead, t.Champion))
	}
	end.Trial = &t
	h.propose(tidemill.PromotionProposed{Action: tidemill.ActionConclude, Version: h.last, Run: h.run, Judgement: &end}, typ, "")
}

// Trials returns the states of the running trials, as an observer would publish them. No observer runs on the install,
// because its models answer without labels.
func Trials(size Size) (all []api.Trial) {
	now := time.Now()
	for _, p := range plans(size) {
		if p.fate != onTrial {
			continue
		}
		r := rand.New(rand.NewPCG(p.seed, 7))
		t := madeTrial(r, 40+r.IntN(900), 0.02)
		if r.IntN(6) == 0 {
			t = tidemill.TrialVerdict{Scorer: "intents", Terms: *trialTerms(), Lead: tidemill.Estimate{Low: -1, High: 1}, Budget: t.Budget} // it has just begun
		}
		one := api.Trial{Model: p.model, Version: p.versions, Recipe: p.recipe, Key: p.key, Scorer: t.Scorer, Champion: p.versions - 1, Began: now.Add(-time.Duration(1+r.IntN(40)) * time.Hour), Terms: t.Terms, TrialCounts: t.TrialCounts,
			Lead: t.Lead, P99: t.P99, Budget: t.Budget, Clauses: clausesOf(&t), Steps: t.Steps, Text: trials.Text(t.TrialCounts, t.Lead, p.versions-1)}
		if len(all)%5 == 3 {
			one.Behind = 12_400
		}
		if len(all)%7 == 5 {
			one.Error = "the store is away: dial tcp 10.1.2.3:9000: connect: connection refused"
		}
		all = append(all, one)
	}
	return all
}

// rolledShare is the share of the keys of recipe churn that its rollout has reached.
const rolledShare = 0.5

// rollout writes the facts of a rollout of recipe churn that has reached half of its keys.
func (w *writer) rollout(ctx context.Context) error {
	recipe, _ := w.conf.Recipe("churn")
	way, before := recipe.Way(), tidemill.Way{Hash: "before", Made: recipe.Way().Made}
	at := w.now.Add(-7 * time.Hour)
	for _, of := range []struct {
		typ string
		d   tidemill.RolloutData
	}{{tidemill.TypeRolloutEnded, tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: &before}},
		{tidemill.TypeRolloutBegun, tidemill.RolloutData{Rollout: "churn/1", Number: 1, Way: &way, Share: 0.1}},
		{tidemill.TypeRolloutAdvanced, tidemill.RolloutData{Rollout: "churn/1", From: 0.1, Share: rolledShare}}} {
		v, err := commands.RolloutFact(w.names, of.typ, recipe.Name, of.d, at)
		if err != nil {
			return err
		}
		w.send(ctx, tidemill.StreamCommands, &v)
		at = at.Add(20 * time.Minute)
	}
	return nil
}
