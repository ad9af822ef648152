//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

const (
	goneTimes   = 8
	swapTimes   = 100
	scoreTimes  = 3
	everyletter = 5 * time.Millisecond
)

// barPodGone measures the time from the end of the command, which the command notes, until its pod
// is deleted.
func (w *world) barPodGone(t *testing.T, recipe string) bar {
	b := bar{what: "last step → pod gone, no linger: " + recipe, wanted: "≤ 2s"}
	way := stagesToGone()
	for i := range goneTimes {
		key := fmt.Sprint("bar-gone-", recipe, "-", i)
		w.mustPublish(t, recipe+"-asked", key, "")
		r := w.succeeds(t, recipe, key)
		ended := time.UnixMilli(int64(r.Result.Metrics["ended"]))
		w.seen.waitUntil(t, "its pod and its Job to go", func() (string, bool) {
			pods := w.seen.allPods(hasLabel[*corev1.Pod](labelRun, r.ID))
			jobs := w.seen.allJobs(hasLabel[*batchv1.Job](labelRun, r.ID))
			if len(pods) == 0 || pods[0].Gone.IsZero() || jobs[0].Gone.IsZero() {
				return "it is there", false
			}
			b.is = append(b.is, pods[0].Gone.Sub(ended))
			way.toGone(t, w, key, ended, &jobs[0], &pods[0])
			return "", true
		})
	}
	b.more = way.String()
	return b
}

// barSwap measures the time from a promotion on the log to the first event on the log that the
// promoted version has scored, while events come all the time. The scorer's start from zero before
// the first event belongs to another bar.
func (w *world) barSwap(t *testing.T) bar {
	const bot = "bar-swap"
	b := bar{what: "promotion → scored by it", wanted: "p99 ≤ 250ms", floor: "its announcement"}
	w.mustPublish(t, tidemill.TypeBotCreated, bot, "")
	w.succeeds(t, "intent", bot)
	w.trainAgain(t, bot)
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- w.messages(ctx, bot) }()
	w.journal.waitForEvent(t, "a score", isEvent(tidemill.TypeScored, bot))
	for i := range swapTimes {
		scored, announced := w.swap(t, bot, 1+i%2)
		b.is, b.floors = append(b.is, scored), append(b.floors, announced)
	}
	stop()
	if err := <-failed; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	return b
}

// trainAgain trains another version.
func (w *world) trainAgain(t *testing.T, bot string) {
	t.Helper()
	_, err := w.door.StartRuns(t.Context(), client.NewAsking(), api.RunsAsked{Recipe: "intent", Keys: []string{bot}})
	must(t, err)
	w.journal.waitUntil(t, "a second version", func() (string, bool) {
		n := len(w.journal.events(isEvent(tidemill.TypeModelPromoted, bot)))
		return fmt.Sprint(n, " were promoted"), n > 1
	})
}

// messages publishes messages until the context ends.
func (w *world) messages(ctx context.Context, bot string) error {
	tick := time.NewTicker(everyletter)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if _, err := w.publish(ctx, "message", bot, message); err != nil {
			return err
		}
	}
}

// swap promotes a version by hand. It returns the time from the proposal until the version has
// scored, and until the promotion was announced.
func (w *world) swap(t *testing.T, bot string, version int) (scored, announced time.Duration) {
	t.Helper()
	proposed, promoted := isEvent(tidemill.TypeModelPromotionProposed, bot), isEvent(tidemill.TypeModelPromoted, bot)
	asked, told := len(w.journal.events(proposed)), len(w.journal.events(promoted))
	done, err := w.door.Promote(t.Context(), tidemill.ActionPromote, api.PromotionAsked{Model: "intent/" + bot, Version: version, Force: true, Reason: "a bar"})
	must(t, err)
	if done.Refused {
		t.Fatalf("promote version %d: %s", version, done.Done)
	}
	w.journal.waitUntil(t, fmt.Sprint("version ", version, " to score"), func() (string, bool) {
		all, others := w.journal.events(proposed), w.journal.events(promoted)
		if len(all) <= asked || len(others) <= told {
			return "it is not promoted", false
		}
		at := all[len(all)-1].logged
		announced = others[len(others)-1].logged.Sub(at)
		for _, e := range w.journal.events(isEvent(tidemill.TypeScored, bot)) {
			if !e.logged.Before(at) && e.attribute("modelversion") == strconv.Itoa(version) {
				scored = e.logged.Sub(at)
				return "", true
			}
		}
		return "no event was scored by it", false
	})
	return scored, announced
}

// barFirstScore measures the time from the gateway's answer to the scored event on the log, with
// the scorer at zero.
func (w *world) barFirstScore(t *testing.T) bar {
	b := bar{what: "event accepted → scored, scorer at zero", wanted: "≤ 3s"}
	for range scoreTimes {
		w.atRest(t)
		asked := w.mustPublish(t, "message", "bar-swap", message)
		e := w.journal.waitForEvent(t, "its score", func(e entry) bool { return e.Type == tidemill.TypeScored && cause(e) == asked.ID })
		b.is = append(b.is, e.at.Sub(asked.At))
	}
	return b
}
