package seed

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// history writes the facts of one recipe and key, in their order.
type history struct {
	keyPlan
	w   *writer
	ctx context.Context
	r   *rand.Rand
	at  time.Time // time of the newest fact
	err error

	run       string // newest run
	cause     tidemill.Cause
	requested int   // number of runs that were requested
	begun     int64 // number of runs that have begun
	began     time.Time
	last      int // number of the newest version
	champion  int
	previous  int
	turn      int64
	quality   map[int]int // quality of each version, as an index of the reports
	inRollout bool        // whether the newest run takes part in the rollout
	facts     int
}

func (w *writer) history(ctx context.Context, p keyPlan) *history {
	return &history{keyPlan: p, w: w, ctx: ctx, r: rand.New(rand.NewPCG(p.seed, 1)), quality: map[int]int{}}
}

// write writes the whole history: runs at the times of begins, of which the last p.versions made a
// version.
func (h *history) write() error {
	begins := h.begins()
	for i, at := range begins {
		h.at = at
		left := len(begins) - 1 - i // number of later runs
		switch {
		case h.fate == noModel && left == 0 && h.seed%2 == 0:
			h.cancel("no new data since the last run")
		case h.fate == noModel:
			h.fail("the dataset has 3 examples, and the trainer needs at least 20", left == 0)
		case h.model == "":
			h.commit()
		case h.fate == failing && left < 2:
			h.fail("exit status 1: CUDA out of memory", true)
		case left < h.versions || h.fate == failing && left < h.versions+2:
			h.version(left)
		case h.r.IntN(10) == 0:
			h.fail("its agent reported nothing for 60 s", false)
		default:
			h.cancel("no new data since the last run")
		}
	}
	h.finally()
	return h.err
}

// begins returns the times of the runs, oldest first.
func (h *history) begins() []time.Time {
	at := h.w.now.Add(-h.fate.age(h.r))
	switch {
	case h.rollout != "":
		at = h.w.now.Add(-time.Duration(10+h.r.IntN(300)) * time.Minute)
	case h.fate == tried:
		at = at.Add(-6 * time.Hour)
	}
	all := make([]time.Time, runsPerKey)
	for i := range all {
		all[len(all)-1-i] = at
		at = at.Add(-6*time.Hour - time.Duration(h.r.ExpFloat64()*70*float64(time.Hour)))
	}
	return all
}

// finally writes what comes after the last run.
func (h *history) finally() {
	switch h.fate {
	case pinned:
		h.propose(tidemill.PromotionProposed{Action: tidemill.ActionPin, Version: h.champion, Reason: "the demo for the board is on Friday"}, tidemill.TypeModelPinned, "anna")
	case rolled:
		if h.previous != 0 {
			h.propose(tidemill.PromotionProposed{Action: tidemill.ActionRollback, Version: h.previous, Reason: "customers report wrong answers about refunds"}, tidemill.TypeModelRolledBack, "ben")
		}
	case unserved:
		h.ofModel(tidemill.TypeModelUnloadable, tidemill.ID("unloadable", h.model), "", h.champion,
			tidemill.ModelUnloadable{Scorer: "intents", Version: h.champion, Kept: h.previous, Error: "model.onnx has the operator Loop, which no engine here runs"})
	case drifting:
		h.ofModel(tidemill.TypeModelDrifted, tidemill.ID("drifted", h.model), "", h.champion,
			tidemill.ModelDrifted{Scorer: "intents", Version: h.champion, Figure: tidemill.FigureLabels, Value: "refund", Before: 0.082, Now: 0.3125, Values: 128,
				Since: "scored/3/81552", Evidence: 4.1e6, Needed: 62_500, Alarm: 1})
	case waiting:
		h.at = h.w.now
		h.request()
	}
}

// request asks for a run.
func (h *history) request() {
	h.requested++
	h.cause = tidemill.Cause{Source: "/crm", ID: fmt.Sprint(h.recipe, "-", h.seed, "-", h.requested)}
	h.run = tidemill.RunID(h.recipe, h.key, h.cause)
	event, err := json.Marshal(map[string]any{"specversion": "1.0", "id": h.cause.ID, "source": h.cause.Source, "type": tidemill.TypeNewData,
		"subject": h.key, "dataset": "bots/" + h.key, "data": map[string]any{"files": 12, "note": "nightly import"}})
	h.fails(err)
	h.ofRun(tidemill.TypeRunRequested, tidemill.ID("requested", h.run), tidemill.RunRequested{Cause: h.cause, Events: []json.RawMessage{event}, Config: h.w.config})
	h.pass(h.seconds(2, 600))
}

// start asks for a run and starts its first attempt.
func (h *history) start() {
	h.request()
	h.begun++
	h.began = h.at
	p := h.w.plan(&h.keyPlan)
	h.ofRun(tidemill.TypeRunStarted, tidemill.ID("started", h.run, "1"), tidemill.RunStarted{Attempt: 1, Causes: 1, Plan: p, Where: h.where()})
	h.pass(h.seconds(40, 900))
}

func (h *history) cancel(reason string) {
	h.request()
	h.ofRun(tidemill.TypeRunCancelled, tidemill.ID("cancelled", h.run), tidemill.RunCancelledData{Reason: reason})
}

// fail makes a run whose attempts all fail.
func (h *history) fail(reason string, twice bool) {
	h.start()
	d := tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeFailed, Reason: reason, Permanent: !twice, Result: tidemill.Result{Exit: 1, PeakMemory: 3 << 30, GPUSeconds: 20,
		Stages: h.stages(), LastLines: "epoch 1 loss 2.31\nTraceback (most recent call last):\n  File \"train.py\", line 88, in <module>\n" + reason + "\n", LogBytes: 2048}}
	h.ofRun(tidemill.TypeRunFinished, tidemill.ID("finished", h.run, "1"), d)
	if !twice {
		return
	}
	h.pass(h.seconds(10, 30))
	h.ofRun(tidemill.TypeRunStarted, tidemill.ID("started", h.run, "2"), tidemill.RunStarted{Attempt: 2, Causes: 1, Where: h.where()})
	h.pass(h.seconds(40, 900))
	d.Attempt, d.Permanent = 2, true
	h.ofRun(tidemill.TypeRunFinished, tidemill.ID("finished", h.run, "2"), d)
}

// commit makes a run that makes a commit of a dataset.
func (h *history) commit() {
	h.start()
	h.ofRun(tidemill.TypeRunFinished, tidemill.ID("finished", h.run, "1"), tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: h.result(0)})
	h.pass(time.Second)
	h.ofRun(tidemill.TypeRunCommitted, tidemill.ID("committed", h.run),
		tidemill.RunCommitted{Dataset: "clean/" + h.key, Branch: "main", Commit: tidemill.ID("commit", h.run)})
}

// version makes a run that makes a version, and its judgement. The newest one is judged by the fate.
func (h *history) version(left int) {
	h.start()
	good := h.quality[h.champion]
	q := min(good+h.r.IntN(2), best)
	hold := ""
	switch newest := left == 0; {
	case h.champion == 0:
		q = best - 5 + h.r.IntN(3)
	case newest && (h.fate == tried || h.fate == onTrial):
		q = min(good+1, best)
	case newest && h.fate == awaiting:
		hold = "recipe " + h.recipe + " promotes by hand"
	case newest && h.fate == refused, !newest && h.last > 1 && h.r.IntN(3) == 0: // the second is promoted, so there is a version to roll back to
		q = max(0, good-1-h.r.IntN(3))
	}
	h.inRollout = left == 0 && h.rollout != ""
	h.last++
	h.quality[h.last] = q
	h.judge(q, hold)
}

func (h *history) stages() []tidemill.Stage {
	return []tidemill.Stage{{Name: "fetch", Seconds: h.seconds(1, 9).Seconds()}, {Name: "run", Seconds: h.seconds(30, 800).Seconds()}, {Name: "upload", Seconds: 0.3}}
}

func (h *history) result(quality int) tidemill.Result {
	return tidemill.Result{PeakMemory: int64(1+h.r.IntN(6)) << 29, GPUSeconds: h.seconds(30, 800).Seconds(), Stages: h.stages(),
		Artifact: h.w.artifact.Tree, Bytes: h.w.artifact.Bytes, Files: h.w.artifact.Files, Metrics: h.w.reports.claimed(quality),
		LastLines: "epoch 10 loss 0.21\ndone\n", LogBytes: 4096}
}

func (h *history) where() tidemill.Where {
	return tidemill.Where{Node: fmt.Sprint("node-", 1+h.r.IntN(6)), Card: []string{"NVIDIA H200", "NVIDIA A100-SXM4-80GB"}[h.r.IntN(2)], Driver: "570.86", Image: "sha256:" + strings.Repeat("a", 64)}
}

func (h *history) seconds(from, to float64) time.Duration {
	return time.Duration((from + h.r.Float64()*(to-from)*h.r.Float64()) * float64(time.Second)).Round(time.Millisecond)
}

func (h *history) pass(d time.Duration) { h.at = h.at.Add(d) }

func (h *history) fails(err error) {
	if h.err == nil {
		h.err = err
	}
}

func (h *history) ofRun(typ, id string, data any) {
	by, rollout, ended := "", "", ""
	if typ == tidemill.TypeRunCancelled {
		by = "anna"
	}
	if h.inRollout && typ == tidemill.TypeRunFinished {
		rollout, ended = h.rollout, string(tidemill.RunSucceeded)
	}
	h.fact(typ, id, tidemill.RunKey(h.recipe, h.key), data, attributes(tidemill.AttrRecipe, h.recipe, tidemill.AttrRun, h.run, tidemill.AttrAuthID, by, tidemill.AttrRollout, rollout, tidemill.AttrOutcome, ended,
		tidemill.AttrCausationID, h.cause.ID, tidemill.AttrCausationSource, h.cause.Source, tidemill.AttrCorrelationID, h.cause.ID))
}

func (h *history) ofModel(typ, id, by string, version int, data any) {
	h.fact(typ, id, tidemill.ModelKey(h.model), data, attributes(tidemill.AttrModel, h.model, tidemill.AttrModelVersion, strconv.Itoa(version),
		tidemill.AttrRecipe, h.recipe, tidemill.AttrRun, h.run, tidemill.AttrAuthID, by,
		tidemill.AttrCausationID, h.cause.ID, tidemill.AttrCausationSource, h.cause.Source, tidemill.AttrCorrelationID, h.cause.ID))
}

func (h *history) fact(typ, id, recordKey string, data any, all []broker.Attribute) {
	text, err := json.Marshal(data)
	h.fails(err)
	h.facts++
	h.w.send(h.ctx, tidemill.StreamFacts, &broker.View{ID: id, Source: h.w.names.Source("seed"), Type: typ, Subject: h.key, Time: h.at.UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(typ), DataContentType: "application/json", Data: text, Key: []byte(recordKey), Extensions: all})
}

// attributes pairs names and values. It leaves out empty values.
func attributes(pairs ...string) (all []broker.Attribute) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, broker.Attribute{Name: pairs[i], Value: pairs[i+1]})
		}
	}
	return all
}
