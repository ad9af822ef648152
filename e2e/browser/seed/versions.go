package seed

import (
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/config/gate"
)

// judge writes the end of a run, the version that it made and the version's judgement.
func (h *history) judge(quality int, hold string) {
	report, tree, err := h.w.reports.of(h.ctx, quality, h.quality[h.champion], h.champion)
	if err != nil {
		h.fails(err)
		return
	}
	result, origin, rules := h.result(quality), h.origin(), h.w.judges[h.recipe]
	if h.fate == tried || h.fate == onTrial {
		rules.Trial = trialTerms()
	}
	candidate := &tidemill.Candidate{Model: h.model, Judge: rules, Origin: origin}
	if h.champion != 0 {
		candidate.Champion = &tidemill.Champion{Version: h.champion, Artifact: result.Artifact}
	}
	h.ofRun(tidemill.TypeRunFinished, tidemill.ID("finished", h.run, "1"),
		tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: result, Candidate: candidate})
	h.pass(200 * time.Millisecond)
	h.ofModel(tidemill.TypeModelRegistered, tidemill.ID("registered", h.model, h.run), "", h.last, tidemill.ModelRegistered{Artifact: result.Artifact, Bytes: result.Bytes,
		Files: result.Files, Report: tree, Metrics: report.Metrics, Judge: rules, Origin: origin})
	h.pass(50 * time.Millisecond)
	j := h.w.gates[h.recipe].Judge(h.model, h.last, gate.Facts{Report: *report, Origin: origin, Seconds: result.Stages[1].Seconds, Bytes: result.Bytes, Files: result.Files,
		GPU: result.GPUSeconds, PeakMemory: result.PeakMemory, Champion: h.champion, Given: h.champion, On: rules.On})
	if h.last == h.versions && (h.fate == tried || h.fate == onTrial) && j.Passed {
		h.try(&j)
		return
	}
	d := tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: h.last, Run: h.run, Judgement: &j, Artifact: result.Artifact}
	typ := tidemill.TypeModelPromoted
	switch {
	case !j.Passed:
		typ = tidemill.TypeModelRefused
	case hold != "":
		j.Hold, d.Hold, typ = hold, hold, tidemill.TypeModelAwaiting
	}
	h.propose(d, typ, "")
}

// propose writes a proposal that will be accepted, and its announcement.
func (h *history) propose(d tidemill.PromotionProposed, announced, by string) {
	before := h.champion
	d.Basis, d.Turn = before, h.turn
	id := tidemill.ID("proposed", h.model, string(d.Action), fmt.Sprint(d.Version), fmt.Sprint(h.turn))
	h.ofModel(tidemill.TypeModelPromotionProposed, id, by, d.Version, d)
	switch announced {
	case tidemill.TypeModelPromoted, tidemill.TypeModelRolledBack:
		h.champion, h.previous = d.Version, before
		h.turn++
	case tidemill.TypeModelPinned:
		h.turn++
	}
	var origin *tidemill.Origin
	if h.inRollout {
		of := h.origin()
		origin = &of
	}
	h.ofModel(announced, tidemill.ID("announced", id), by, d.Version, tidemill.ModelAnnounced{Proposal: id, Version: d.Version, Champion: h.champion, Before: before, Turn: h.turn,
		Reason: d.Reason, Artifact: d.Artifact, Judgement: d.Judgement, Origin: origin})
}

func (h *history) origin() tidemill.Origin {
	p := h.w.plan(&h.keyPlan)
	rollout := ""
	if h.inRollout {
		rollout = h.rollout
	}
	return tidemill.Origin{Rollout: rollout, Run: h.run, Recipe: h.recipe, Key: h.key, Config: h.w.config, Attempt: 1, Began: h.began, Ended: h.at, Inputs: p.Inputs,
		Causes: 1, First: h.cause, Newest: h.cause, Where: h.where(),
		Mark: tidemill.Mark{Making: tidemill.RunKey(h.recipe, h.key), Number: h.begun}}
}
