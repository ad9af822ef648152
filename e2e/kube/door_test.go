//go:build cluster

package kube

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/gateway/client"
)

// source is the source of the test's events.
const source = "/e2e/kube"

// accepted is an event that the gateway has answered with a 2xx.
type accepted struct {
	ID, Type, Subject string
	At                time.Time // time of the answer
}

// publish publishes an event over HTTP. It never ends the test, so goroutines may call it.
func (w *world) publish(ctx context.Context, kind, subject, data string) (accepted, error) {
	v := &broker.View{ID: rand.Text(), Source: source, Type: kind, Subject: subject}
	if data != "" {
		v.DataContentType, v.Data = "application/json", []byte(data)
	}
	if _, err := w.door.Publish(ctx, "", v); err != nil {
		return accepted{}, fmt.Errorf("publish %s about %s: %w", kind, subject, err)
	}
	return accepted{v.ID, kind, subject, time.Now()}, nil
}

// mustPublish publishes an event, and fails the test if the event is not accepted.
func (w *world) mustPublish(t *testing.T, kind, subject, data string) accepted {
	t.Helper()
	a, err := w.publish(t.Context(), kind, subject, data)
	must(t, err)
	return a
}

// runsOf returns a recipe's runs of a key, newest first.
func (w *world) runsOf(ctx context.Context, recipe, key string) ([]api.RunShown, error) {
	page, err := w.door.Runs(ctx, client.RunQuery{Recipe: recipe, Key: key})
	return page.Runs, err
}

// run waits until the only run of a recipe and key meets a condition.
func (w *world) run(t *testing.T, what, recipe, key string, met func(api.RunShown) bool) api.RunShown {
	t.Helper()
	var found api.RunShown
	eventually(t, fmt.Sprintf("the run of %s for %s: %s", recipe, key, what), func(ctx context.Context) error {
		all, err := w.runsOf(ctx, recipe, key)
		switch {
		case err != nil:
			return err
		case len(all) != 1:
			return fmt.Errorf("it has %d runs", len(all))
		case !met(all[0]):
			return fmt.Errorf("it is %s", inWords(all[0]))
		}
		found = all[0]
		return nil
	})
	return found
}

// succeeds waits for the end of a run, which must be a success.
func (w *world) succeeds(t *testing.T, recipe, key string) api.RunShown {
	t.Helper()
	r := w.run(t, "its end", recipe, key, func(r api.RunShown) bool { return r.State.Ended() })
	if r.State != tidemill.RunSucceeded {
		t.Fatalf("the run of %s for %s ended: %s", recipe, key, inWords(r))
	}
	return r
}

func inWords(r api.RunShown) string {
	text := fmt.Sprintf("%s (%s)", r.State, r.ID)
	if r.Waits != "" {
		text += "; " + r.Waits
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	for _, a := range r.Attempts {
		text += fmt.Sprintf("; attempt %d on %q %s %s %s", a.Number, a.Node, a.Outcome, a.Reason, a.Pending)
	}
	if r.Result != nil && r.Result.LastLines != "" && r.State != tidemill.RunSucceeded {
		text += "; it said: " + r.Result.LastLines
	}
	return text
}

// keys returns n names that no other test uses.
func keys(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return all
}

// noLetters checks that no event with these subjects became a dead letter.
func (w *world) noLetters(t *testing.T, subjects []string) {
	t.Helper()
	for _, e := range w.journal.events(func(e entry) bool {
		return e.Type == tidemill.TypeEventDeadLettered && slices.Contains(subjects, e.Subject)
	}) {
		t.Errorf("a dead letter about %s: %s", e.Subject, e.Data)
	}
}
