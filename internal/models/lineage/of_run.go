package lineage

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// runData holds the known data of a run: from the ledger, from the log, and from the version that it
// made.
type runData struct {
	run    tidemill.Run
	plan   *tidemill.Plan   // nil before the run has begun, and if the log no longer has it
	asked  []*thing         // events that asked for it, newest first, as far as they were read
	made   []string         // links to its results, as the ledger names them
	origin *tidemill.Origin // source of the other data if the ledger no longer knows the run
}

// ofOrigin returns a run that only its version describes.
func ofOrigin(o *tidemill.Origin) runData {
	return runData{origin: o, run: tidemill.Run{
		ID: o.Run, Recipe: o.Recipe, Key: o.Key, State: tidemill.RunSucceeded, Causes: o.Causes, First: o.First, Newest: o.Newest, By: o.By,
		Config: o.Config, Partition: o.Mark.Partition, End: o.Ended,
		Attempts: []tidemill.Attempt{{Number: o.Attempt, Offset: o.Mark.Offset, Started: o.Began, Ended: o.Ended, Where: o.Where}}}}
}

// ofRun returns a run with the wanted sides: its causes, its effects, or both.
func ofRun(k runData, of wantedSides) *thing {
	r := &k.run
	t := newThing(runRef(r.ID), "run "+shortID(r.ID))
	t.key = tidemill.OwnerOf(r.Recipe, r.Key)
	t.node.State, t.node.Time, t.node.Said = string(r.State), nodeTime(whenOf(r)), r.Reason
	sayRun(t, r)
	factsOfRun(t, r)
	if k.origin != nil {
		t.note(fmt.Sprintf("the ledger no longer names run %s, because its key has had many since: it is shown as its version records it, and its attempts are on the stream facts", shortID(r.ID)))
	}
	if of.back {
		cameFrom(t, &k)
	}
	if of.ahead {
		madeBy(t, &k)
	}
	return t
}

func cameFrom(t *thing, k *runData) {
	r := &k.run
	inputsOf(t, k.inputs())
	codeOf(t, r, k.plan)
	machineOf(t, r)
	if k.plan != nil && k.plan.Champion != nil {
		t.addAside(api.EdgeBeside, modelRef(k.plan.Model, strconv.Itoa(k.plan.Champion.Version)), nil)
	}
	if r.Again != "" {
		t.addAside(api.EdgeRetried, runRef(r.Again), nil)
	}
	askedFor(t, r, k.asked)
}

// whenOf returns the time at which a run entered its state.
func whenOf(r *tidemill.Run) time.Time {
	switch n := len(r.Attempts); {
	case !r.End.IsZero():
		return r.End
	case r.State == tidemill.RunRunning && n > 0:
		return r.Attempts[n-1].Started
	case n > 0:
		return r.Attempts[n-1].Ended
	}
	return r.Asking
}

func sayRun(t *thing, r *tidemill.Run) {
	of := "recipe " + r.Recipe
	if r.Key != "" {
		of += " for " + r.Key
	}
	t.addText(of)
	if n := len(r.Attempts); n > 0 {
		a := &r.Attempts[n-1]
		text := "attempt " + strconv.Itoa(a.Number)
		if !a.Ended.IsZero() {
			text += ", " + span(a.Ended.Sub(a.Started))
		}
		t.addText(text)
	}
	if r.Result != nil {
		t.addText(headline(r.Result.Metrics))
	}
	if r.By != "" {
		t.addText("requested by " + r.By)
	}
	if c := r.Cancel; c != nil {
		t.addText(joined("cancelled by "+orSomebody(c.By), c.Reason))
	}
}

func orSomebody(by string) string {
	if by == "" {
		return "anonymous"
	}
	return by
}

func factsOfRun(t *thing, r *tidemill.Run) {
	t.addFact("run", r.ID)
	t.addFact("recipe", r.Recipe)
	t.addFact("key", r.Key)
	t.addFact("state", string(r.State))
	t.addFact("config", r.Config)
	t.addFact("by", r.By)
	t.addFact("causes", strconv.Itoa(r.Causes))
	if n := len(r.Attempts); n > 0 {
		a := &r.Attempts[n-1]
		t.addFact("attempt", strconv.Itoa(a.Number))
		t.addFact("node", a.Node)
		t.addFact("card", a.Card)
		t.addFact("driver", a.Driver)
		t.addFact("image", a.Image)
		t.addFact("resumedFrom", a.ResumedFrom)
		t.addFact("started", timeText(a.Started))
		t.addFact("ended", timeText(a.Ended))
	}
	if r.Result != nil {
		t.addFact("artifact", r.Result.Artifact)
	}
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// inputs returns the run's inputs from its plan, or else from its version.
func (k *runData) inputs() []tidemill.Input {
	switch {
	case k.plan != nil:
		return k.plan.Inputs
	case k.origin != nil:
		return k.origin.Inputs
	}
	return nil
}

func inputsOf(t *thing, all []tidemill.Input) {
	for i := range all {
		in := &all[i]
		if in.Commit == "" {
			if in.URI != "" {
				t.addText("trained on " + withoutSecrets(in.URI))
				t.addFact("input."+in.Name, withoutSecrets(in.URI))
			}
			if in.Outcomes != "" {
				t.addText("trained on " + count(in.Rows, "outcome") + " of scorer " + in.Outcomes)
				t.addFact("input."+in.Name, "outcomes of "+in.Outcomes)
				t.addFact("tree", in.Tree)
			}
			continue
		}
		t.addFact("input."+in.Name, in.Dataset+"@"+in.Commit)
		t.cause(api.EdgeTaught, commitRef(in.Dataset, in.Commit), ofInput(in))
	}
}

// ofInput returns a commit as the run that learnt from it knows it.
func ofInput(in *tidemill.Input) *thing {
	t := newThing(commitRef(in.Dataset, in.Commit), titleOfCommit(in.Commit, in.Dataset, in.Branch))
	t.dataset = in.Dataset
	t.addText(joined(count(in.Files, "file"), size(in.Bytes)))
	t.addFact("dataset", in.Dataset)
	t.addFact("branch", in.Branch)
	t.addFact("commit", in.Commit)
	t.addFact("tree", in.Tree)
	return t
}

// codeOf adds the code of the last attempt: the same image or folder with the same config is one
// code.
func codeOf(t *thing, r *tidemill.Run, plan *tidemill.Plan) {
	image := ""
	if n := len(r.Attempts); n > 0 {
		image = r.Attempts[n-1].Image
	}
	if plan != nil && image == "" {
		image = plan.Image + plan.Dir
	}
	if image == "" {
		return
	}
	code := newThing(ref{api.KindCode, image, shortID(r.Config)}, "code "+shortDigest(image))
	code.free = true
	code.addFact("image", image)
	code.addFact("config", r.Config)
	if plan != nil {
		command := strings.Join(plan.Command, " ")
		code.addFact("command", command)
		code.addFact("from", plan.Image+plan.Dir)
		if plan.Image+plan.Dir != image {
			command += " in " + plan.Image + plan.Dir
		}
		code.addText(command)
	}
	if r.Config != "" {
		code.addText("config " + shortID(r.Config))
	}
	t.causes = append(t.causes, link{to: code.ref, what: api.EdgeCode, linked: code, leaf: true})
}

func machineOf(t *thing, r *tidemill.Run) {
	n := len(r.Attempts)
	if n == 0 || r.Attempts[n-1].Node == "" {
		return
	}
	where := &r.Attempts[n-1].Where
	node := newThing(ref{api.KindNode, where.Node, ""}, "node "+placeOf(where))
	node.free = true
	node.addFact("node", where.Node)
	t.causes = append(t.causes, link{to: node.ref, what: api.EdgeRan, linked: node, leaf: true})
}

// askedFor links a run to the events that asked for it.
func askedFor(t *thing, r *tidemill.Run, read []*thing) {
	all := ofAsked(r, read)
	for _, e := range all {
		t.cause(api.EdgeAsked, e.ref, e)
	}
	if more := r.Causes - len(all); more > 0 {
		t.note(fmt.Sprintf("%s more are causes of run %s: tidemill runs show %s lists them", count(more, "event"), shortID(r.ID), shortID(r.ID)))
	}
}

// ofAsked returns the events that were read and those that the run itself names, newest first. A
// caller that may see the run may see them.
func ofAsked(r *tidemill.Run, read []*thing) []*thing {
	seen := map[ref]bool{}
	var all []*thing
	add := func(e *thing) {
		if !seen[e.ref] {
			e.key, seen[e.ref] = tidemill.OwnerOf(r.Recipe, r.Key), true
			all = append(all, e)
		}
	}
	for _, e := range read {
		add(e)
	}
	for _, c := range []tidemill.Cause{r.Newest, r.First} {
		if c != (tidemill.Cause{}) && len(all) < r.Causes {
			add(newThing(eventRef(c), "event "+shortID(c.ID)+" from "+c.Source))
		}
	}
	return all
}

// madeBy links a run to its results.
func madeBy(t *thing, k *runData) {
	for _, name := range k.made {
		to, err := parseRef(name)
		if err != nil || to.kind == api.KindRun {
			continue // a newer Tidemill may write names that this one does not know
		}
		if to.kind == api.KindCommit && to.of == "" && k.plan != nil {
			to.of = k.plan.Dataset
		}
		if to.kind == api.KindCommit && to.at == k.run.Commit {
			k.run.Commit = ""
		}
		t.effect(api.EdgeMade, to, nil)
	}
	if k.run.Commit != "" && k.plan != nil {
		t.effect(api.EdgeMade, commitRef(k.plan.Dataset, k.run.Commit), nil)
	}
}
