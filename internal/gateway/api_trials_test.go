package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
)

// newStandings starts a gateway with runs, scorers, a recipe with rollouts, and the boards of trials and rollouts.
func newStandings(t testing.TB, change func(*Options)) *runWorld {
	t.Helper()
	w := &runWorld{world: newWorldOf(t, testTriggers+recipesOfTests+rolledOfTests+scorersOfTests, embedded.Options{}, nil)}
	w.startForeman()
	w.gateway = w.openGateway(w.with(func(o *Options) {
		w.standings(o)
		if change != nil {
			change(o)
		}
	}))
	w.url = "http://" + w.gateway.Addr()
	return w
}

// onTrial lets an observer publish trials until the test ends.
func (w *runWorld) onTrial(all ...api.Trial) {
	w.Helper()
	ctx, stop := context.WithCancel(w.Context())
	done := make(chan struct{})
	board := status.NewTrials(w.redis, must1(tidemill.NewNames(""))(w), "kafka-1")
	go func() { defer close(done); board.Publish(ctx, "intents", func() []api.Trial { return all }) }()
	w.Cleanup(func() { stop(); <-done })
	w.waitUntil("the trials are published", func() bool { return len(must1(board.Read(ctx))(w)) == len(all) })
}

func trialOf(key string, version int) api.Trial {
	return api.Trial{Model: "intent/" + key, Version: version, Recipe: "intent", Key: key, Scorer: "intents", Champion: 1, Began: time.Now().Add(-time.Hour), Terms: tidemill.TrialTerms{Pass: []string{"stream.lead.low > 0"}, Until: 48 * time.Hour, AtLeast: 500, Alpha: 0.05},
		TrialCounts: tidemill.TrialCounts{Answered: 1000, Agreed: 950, Labelled: 400, Wins: 20, Losses: 9, Votes: 400}, Lead: tidemill.Estimate{Value: 0.0275, Low: -0.004, High: 0.06}, P99: 3.5, Text: "on 1000 events it disagrees",
		Budget: tidemill.TrialBudget{Trials: 4, Promoted: 1, Level: 0.0125}, Clauses: []tidemill.Clause{{Text: "stream.lead.low > 0", Values: map[string]float64{"stream.lead.low": -0.004}}},
		Steps: []tidemill.TrialStep{{Labelled: 200, Won: 9, Lost: 5, Tied: 186}, {Labelled: 300, Won: 14, Lost: 7, Tied: 279}, {Labelled: 400, Won: 20, Lost: 9, Tied: 371}}}
}

// The running trials are listed by pages, for the keys that the caller may read.
func TestTrialsAreListed(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: read")+callerLine("max", "role: read, keys: [bot-2]"))
	w := newStandings(t, func(o *Options) { o.Access = guard })
	w.onTrial(trialOf("bot-1", 2), trialOf("bot-2", 2), trialOf("bot-3", 7))
	list := func(query, caller string) (names []string) {
		t.Helper()
		for after := ""; ; {
			p := sendDecoded[api.TrialList](w.world, http.MethodGet, "/api/v1/trials?"+query+"&after="+after, "", tokenHeader(caller)...)
			for _, one := range p.Trials {
				names = append(names, fmt.Sprint(one.Key, " of ", p.Total))
			}
			if after = p.Next; after == "" {
				return names
			}
		}
	}
	all := []string{"bot-1 of 3", "bot-2 of 3", "bot-3 of 3"}
	for _, query := range []string{"", "limit=1", "limit=2", "recipe=intent"} {
		if got := list(query, "ana"); !slices.Equal(got, all) {
			t.Errorf("%s: %v", query, got)
		}
	}
	for query, caller := range map[string]string{"key=bot-2": "ana", "model=intent/bot-2": "ana", "": "max", "limit=1": "max"} {
		if got := list(query, caller); !slices.Equal(got, []string{"bot-2 of 1"}) {
			t.Errorf("%s of %s: %v", query, caller, got)
		}
	}
	if none := list("recipe=churn", "ana"); len(none) > 0 {
		t.Errorf("of another recipe: %v", none)
	}
}

// endTrial tries a version and refuses it.
func (w *runWorld) endTrial(of madeVersion) {
	w.Helper()
	version := 2
	propose := func(action tidemill.Action, j *tidemill.Judgement) {
		m := must1(w.ledger.Model(w.Context(), of.model))(w)
		w.appendModel(tidemill.TypeModelPromotionProposed, string(action)+" "+of.model, of, tidemill.PromotionProposed{Action: action, Version: version, Run: of.run, Basis: m.Champion, Turn: m.Turn, Judgement: j})
	}
	m := w.appendModel(tidemill.TypeModelRegistered, "registered "+of.run, of, tidemill.ModelRegistered{Artifact: "made", Judge: tidemill.Judge{Keep: 10}, Origin: tidemill.Origin{Run: of.run, Recipe: "intent", Key: of.key, Began: time.Now(), Mark: tidemill.Mark{Partition: 999, Offset: time.Now().UnixMilli()}}})
	version = m.Last
	propose(tidemill.ActionTry, &tidemill.Judgement{Passed: true})
	trial := trialOf(of.key, version)
	propose(tidemill.ActionConclude, &tidemill.Judgement{Sentence: fmt.Sprintf("version %d of %s is refused by its trial: it is worse", version, of.model), Clauses: trial.Clauses,
		Trial: &tidemill.TrialVerdict{Scorer: "intents", Recipe: "intent", Champion: 1, Began: trial.Began, Ended: time.Now(), Outcome: tidemill.TrialRefused, Terms: trial.Terms, TrialCounts: trial.TrialCounts, Lead: trial.Lead, Steps: trial.Steps,
			Read: []tidemill.TrialRange{{Stream: "scored", From: 3, To: 903}}, Digest: strings.Repeat("ab", 32)}})
}

// The trials that have ended are listed with their verdicts, and the pages show both kinds.
func TestEndedTrialsAreListedAndShown(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: approve")+callerLine("max", "role: read, keys: [bot-2]"))
	w := newStandings(t, func(o *Options) { o.Access = guard })
	for _, key := range []string{"bot-1", "bot-2"} {
		w.makeChampions("intent/"+key, key, 1)
		w.endTrial(madeVersion{model: "intent/" + key, key: key, run: "tried-" + key})
	}
	all := sendDecoded[api.EndedTrials](w.world, http.MethodGet, "/api/v1/trials/ended?recipe=intent", "", tokenHeader("ana")...)
	if len(all.Trials) != 2 || all.Trials[0].Key != "bot-2" || all.Trials[0].Verdict == nil || all.Trials[0].State != tidemill.VersionRefused || len(all.Trials[0].Verdict.Steps) != 3 || len(all.Trials[0].Clauses) != 1 {
		t.Errorf("%+v", all)
	}
	mine := sendDecoded[api.EndedTrials](w.world, http.MethodGet, "/api/v1/trials/ended", "", tokenHeader("max")...)
	if len(mine.Trials) != 1 || mine.Trials[0].Key != "bot-2" {
		t.Errorf("of a caller for one key: %+v", mine)
	}
	w.onTrial(trialOf("bot-<3>", 4))
	body := w.page("/ui/trials", tokenHeader("ana")...)
	mustShow(t, body, "intent/bot-&lt;3&gt;@4", "+2.8", "−0.4 to +6.0", "400 of 500", "5.0 %", "3.5 ms", `class="spark"`, "intent/bot-1@2", "refused", "it is worse", "tidemill judge --again intent/bot-1@2")
	if mine := w.page("/ui/trials", tokenHeader("max")...); strings.Contains(mine, "bot-1") || !strings.Contains(mine, "bot-2") {
		t.Error("the page shows trials of keys that its caller may not see")
	}
	mustShow(t, w.page("/ui/trial?model=intent/bot-1&version=2", tokenHeader("ana")...), "Lead over the labelled events", "surely above this", "did not hold", "scored", "903", "abababab", "tidemill judge --again intent/bot-1@2")
	mustShow(t, w.page("/ui/trial?model=intent/bot-<3>&version=4", tokenHeader("ana")...), "does not hold", "4 trials in 30 days", "1.25 %", "Promote without a verdict", "20 : 9")
	if r := w.do(http.MethodGet, "/ui/trial?model=intent/bot-1&version=1", "", tokenHeader("ana")...); r.StatusCode != http.StatusNotFound || !strings.Contains(r.body, "there is no such trial") {
		t.Errorf("a version without a trial: %d", r.StatusCode)
	}
}

// beginRollout brings a recipe's change to a tenth of its keys.
func (w *runWorld) beginRollout(recipe string) {
	w.Helper()
	way := func(hash string) *tidemill.Way { return &tidemill.Way{Hash: hash, Made: []byte("{}")} }
	for _, of := range []struct {
		typ string
		d   tidemill.RolloutData
	}{{tidemill.TypeRolloutEnded, tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: way("a")}}, {tidemill.TypeRolloutBegun, tidemill.RolloutData{Rollout: recipe + "/1", Number: 1, Way: way("b"), Share: 0.01}},
		{tidemill.TypeRolloutAdvanced, tidemill.RolloutData{Rollout: recipe + "/1", From: 0.01, Share: 0.1, Figures: map[string]float64{"worse": -0.01, "worse.mean": 0.004, "failed": 0.003, "runs": 210, "keys": 190, "measured": 150}}}} {
		v := must1(commands.RolloutFact(must1(tidemill.NewNames(""))(w), of.typ, recipe, of.d, time.Now()))(w)
		must1(commands.Publish(w.Context(), w.producer, &v))(w)
	}
	w.waitUntil("the rollout has begun", func() bool {
		return sendDecoded[api.Rollout](w.world, http.MethodGet, "/api/v1/rollouts/"+recipe, "", tokenHeader("ana")...).Share == 0.1
	})
}

// A dry run of a change of a rollout says what would happen, and writes nothing. The page shows the steps and the bounds,
// and its actions do the same.
func TestRolloutsAreChangedAndShown(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: approve")+callerLine("max", "role: read"))
	w := newStandings(t, func(o *Options) { o.Access = guard })
	for i := range 3 {
		w.judgedVersion(madeVersion{model: fmt.Sprint("rolled/bot-", i), key: fmt.Sprint("bot-", i), recipe: "rolled", run: fmt.Sprint("run-", i), passed: true})
	}
	change := func(verb, body string) api.Rested {
		t.Helper()
		return sendDecoded[api.Rested](w.world, http.MethodPost, "/api/v1/rollouts/rolled/"+verb, body, tokenHeader("ana")...)
	}
	if none := change("pause", `{"dryRun":true}`); none.Changed || none.Done != "recipe rolled has no rollout that advances: nothing changes" {
		t.Errorf("without a rollout: %+v", none)
	}
	w.beginRollout("rolled")
	dry := change("pause", `{"dryRun":true}`)
	if !dry.Changed || dry.Position != nil || !strings.HasPrefix(dry.Done, "rolled/1 stays at 10 % of the keys") {
		t.Errorf("a dry run answers %+v", dry)
	}
	shown := sendDecoded[api.Rollout](w.world, http.MethodGet, "/api/v1/rollouts/rolled", "", tokenHeader("ana")...)
	if shown.State != api.RolloutRunning || len(shown.Cohorts) != len(shown.Keys) || shown.Cohorts[len(shown.Keys)-1] != 3 {
		t.Errorf("after a dry run it is %+v", shown)
	}
	body := w.page("/ui/rollouts", tokenHeader("ana")...)
	mustShow(t, body, "rolled/1", "running", `aria-current="step"`, "to come", "−1.0 points; mean +0.4", "0.3 %", "210 runs", "fleet.worse", `href="/ui/act/pause-rollout?recipe=rolled"`, `href="/ui/act/abort-rollout?recipe=rolled"`)
	mustShow(t, w.page("/ui/rollouts", tokenHeader("max")...), "needs the role approve")
	mustShow(t, w.page("/ui/act/abort-rollout?recipe=rolled&reason=worse", tokenHeader("ana")...), "rolled/1 ends, the models that it has promoted", "tidemill rollouts abort rolled --reason worse")
	form := "recipe=rolled&reason=a+holiday"
	paused := w.do(http.MethodPost, "/ui/act/pause-rollout", form, append(tokenHeader("ana"), "Content-Type", "application/x-www-form-urlencoded")...)
	mustShow(t, paused.body, "rolled/1 stays at 10 %", `href="/ui/act/resume-rollout?recipe=rolled"`)
	mustShow(t, w.page("/ui/rollouts?recipe=rolled", tokenHeader("ana")...), "paused", "by <bdi class=\"s\">ana</bdi>", "a holiday", `href="/ui/act/resume-rollout?recipe=rolled"`)
	mustShow(t, w.page("/ui/approvals", tokenHeader("ana")...), "rollout of recipe rolled ended: adopted", "rollout rolled/1 begun with 1 % of the keys", "rollout rolled/1 advanced with 10 % of the keys", "rollout rolled/1 paused", "a holiday")
	if done := change("resume", `{}`); !done.Changed || !strings.Contains(done.Done, "holds that share from the beginning") {
		t.Errorf("resumed: %+v", done)
	}
	if done := change("abort", `{"reason":"worse"}`); !done.Changed || done.Position == nil {
		t.Errorf("aborted: %+v", done)
	}
	mustShow(t, w.page("/ui/rollouts", tokenHeader("ana")...), "aborting", "Its keys go back")
	mustShow(t, w.page("/ui/rollouts?recipe=intent", tokenHeader("ana")...), "has no rollouts")
}
