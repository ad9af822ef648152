//go:build cluster

package kube

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
)

// The whole loop. At its beginning and at its end, all Services are scaled to zero.
func TestFromZeroToAScoredEventAndBack(t *testing.T) {
	w := cluster(t)
	w.atRest(t)
	const bot = "loop-bot"
	asked := w.mustPublish(t, tidemill.TypeBotCreated, bot, "")

	r := w.succeeds(t, "intent", bot)
	if r.Causes != 1 || len(r.Attempts) != 1 {
		t.Errorf("the run has %d causes and %d attempts", r.Causes, len(r.Attempts))
	}
	if r.First.ID != asked.ID {
		t.Errorf("its cause is %+v, and not the event %s", r.First, asked.ID)
	}
	w.wantWhere(t, r.Attempts[0])
	w.wantWoken(t, "train")
	w.journal.waitForEvent(t, "its promotion", isEvent(tidemill.TypeModelPromoted, bot))
	w.wantWoken(t, "promote")

	text := w.mustPublish(t, "message", bot, message)
	scored := w.journal.waitForEvent(t, "the scored event", func(e entry) bool {
		return e.Type == tidemill.TypeScored && e.attribute("causationid") == text.ID
	})
	if m := scored.attribute("model"); m != "intent/"+bot {
		t.Errorf("it was scored by %q", m)
	}
	if len(w.seen.allPods(hasLabel[*corev1.Pod](labelScorer, "intents"))) == 0 {
		t.Error("no pod of the scorer was seen")
	}
	w.atRest(t)
	w.onlyOneJob(t, []string{bot}, "intent")
	w.noLetters(t, []string{bot})
}

// wantWhere checks that the run names its node, which is the one with GPUs.
func (w *world) wantWhere(t *testing.T, a tidemill.Attempt) {
	t.Helper()
	nodes, err := list(t.Context(), w.server.core, "", "nodes", &corev1.NodeList{})
	must(t, err)
	if !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == a.Node && n.Labels[gpuLabel] == "yes" }) {
		t.Errorf("the attempt says that it was on the node %q, which is not one with GPUs", a.Node)
	}
}

// wantWoken checks that a function has had a pod.
func (w *world) wantWoken(t *testing.T, function string) {
	t.Helper()
	if len(w.seen.allPods(component(function))) == 0 {
		t.Errorf("no pod of the function %s was seen", function)
	}
}

// onlyOneJob checks that each key has had one run of a recipe, and that each run has had one Job,
// among all Jobs ever seen.
func (w *world) onlyOneJob(t *testing.T, keys []string, recipe string) {
	t.Helper()
	finished := w.journal.events(func(e entry) bool {
		return e.Type == tidemill.TypeRunFinished && e.attribute("recipe") == recipe && slices.Contains(keys, e.Subject)
	})
	runs := map[string][]string{} // finished runs, by key
	for _, e := range finished {
		if run := e.attribute("run"); !slices.Contains(runs[e.Subject], run) {
			runs[e.Subject] = append(runs[e.Subject], run)
		}
	}
	jobs := map[string]int{} // number of Jobs, by run
	for _, j := range w.seen.allJobs(jobsOf(recipe)) {
		jobs[j.Last.Labels[labelRun]]++
	}
	for _, key := range keys {
		if len(runs[key]) != 1 {
			t.Errorf("%s had %d runs of %s: %v", key, len(runs[key]), recipe, runs[key])
		}
		for _, run := range runs[key] {
			if jobs[run] != 1 {
				t.Errorf("the run %s for %s had %d Jobs", run, key, jobs[run])
			}
		}
	}
}
