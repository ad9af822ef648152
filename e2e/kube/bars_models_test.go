//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

const (
	goneTimes   = 8
	swapTimes   = 30
	scoreTimes  = 3
	everyletter = 5 * time.Millisecond
)

// barPodGone is from what the command notes as its last moment until its pod has
// gone.
func (w *world) barPodGone(t *testing.T) bar {
	b := bar{what: "last step → pod gone, no linger", wanted: "≤ 2s"}
	for i := range goneTimes {
		key := fmt.Sprint("bar-gone-", i)
		w.say(t, "brief-asked", key, "")
		r := w.succeeds(t, "brief", key)
		ended := time.UnixMilli(int64(r.Result.Metrics["ended"]))
		w.seen.until(t, "its pod to go", func() (string, bool) {
			pods := w.seen.allPods(labelled[*corev1.Pod](labelRun, r.ID))
			if len(pods) == 0 || pods[0].Gone.IsZero() {
				return "it is there", false
			}
			b.is = append(b.is, pods[0].Gone.Sub(ended))
			return "", true
		})
	}
	return b
}

// barSwap is from a promotion on the log to the first event on the log that the
// promoted version has scored, while events come in all the time.
func (w *world) barSwap(t *testing.T) bar {
	const bot = "bar-swap"
	b := bar{what: "promotion → scored by it", wanted: "p99 ≤ 250ms"}
	w.say(t, tidemill.TypeBotCreated, bot, "")
	w.succeeds(t, "intent", bot)
	w.again(t, bot)
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- w.messages(ctx, bot) }()
	for i := range swapTimes {
		b.is = append(b.is, w.swap(t, bot, 1+i%2))
	}
	stop()
	if err := <-failed; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	return b
}

// again makes another version.
func (w *world) again(t *testing.T, bot string) {
	t.Helper()
	_, err := w.door.StartRuns(t.Context(), remote.NewAsking(), api.RunsAsked{Recipe: "intent", Keys: []string{bot}})
	must(t, err)
	w.told.until(t, "a second version", func() (string, bool) {
		n := len(w.told.events(of(tidemill.TypeModelPromoted, bot)))
		return fmt.Sprint(n, " were promoted"), n > 1
	})
}

// messages sends until the context ends.
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

// swap promotes a version by hand.
func (w *world) swap(t *testing.T, bot string, version int) time.Duration {
	t.Helper()
	before := len(w.told.events(of(tidemill.TypeModelPromoted, bot)))
	done, err := w.door.Promote(t.Context(), tidemill.ActionPromote, api.PromotionAsked{Model: "intent/" + bot, Version: version, Force: true, Reason: "a bar"})
	must(t, err)
	if done.Refused {
		t.Fatalf("promote version %d: %s", version, done.Done)
	}
	var at, scored time.Time
	w.told.until(t, fmt.Sprint("version ", version, " to score"), func() (string, bool) {
		promoted := w.told.events(of(tidemill.TypeModelPromoted, bot))
		if len(promoted) <= before {
			return "it is not promoted", false
		}
		at = promoted[len(promoted)-1].logged
		for _, e := range w.told.events(of(tidemill.TypeScored, bot)) {
			if e.logged.After(at) && e.attribute("modelversion") == strconv.Itoa(version) {
				scored = e.logged
				return "", true
			}
		}
		return "no event was scored by it", false
	})
	return scored.Sub(at)
}

// barFirstScore is from the gateway's answer to the scored event on the log, the
// scorer being at zero.
func (w *world) barFirstScore(t *testing.T) bar {
	b := bar{what: "event accepted → scored, scorer at zero", wanted: "≤ 3s"}
	for range scoreTimes {
		w.atRest(t)
		asked := w.say(t, "message", "bar-swap", message)
		e := w.told.one(t, "its score", func(e told) bool { return e.Type == tidemill.TypeScored && cause(e) == asked.ID })
		b.is = append(b.is, e.at.Sub(asked.At))
	}
	return b
}
