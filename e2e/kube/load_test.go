//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
)

const (
	betweenEvents   = 150 * time.Millisecond
	messagesEach    = 3 // messages to bots with a model, per new bot
	loadedBots      = 4
	publishPatience = 2 * time.Minute
	message         = `{"text":"where is my parcel"}`
)

// load is the publishers' events during a disturbance of the cluster: new bots, and messages to
// bots that have a model.
type load struct {
	mu       sync.Mutex
	bots     []accepted
	messages []accepted
	sent     chan struct{} // receives after each new bot, if the test reads it
}

// publishDuring publishes an event for each of the new bots, one after another, while do runs. It
// ends when do has returned and all bots are published.
func (w *world) publishDuring(t *testing.T, name string, bots int, do func(ctx context.Context, l *load) error) *load {
	t.Helper()
	w.trainModels(t, name)
	l := &load{sent: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		both sync.WaitGroup
		errs [2]error
	)
	done := make(chan struct{})
	both.Go(func() { defer close(done); errs[0] = do(ctx, l) })
	both.Go(func() { errs[1] = w.publishers(ctx, name, bots, l, done) })
	both.Wait()
	must(t, errors.Join(errs[:]...))
	return l
}

// trainModels gives some bots a model.
func (w *world) trainModels(t *testing.T, name string) {
	t.Helper()
	old := taught(name)
	for _, key := range old {
		w.mustPublish(t, tidemill.TypeBotCreated, key, "")
	}
	w.journal.waitUntil(t, "the models of the bots that are there from the beginning", func() (string, bool) {
		promoted := w.journal.events(oneOf(tidemill.TypeModelPromoted, old))
		return fmt.Sprintf("%d of %d are promoted", len(promoted), len(old)), len(promoted) >= len(old)
	})
}

func taught(name string) []string { return keys(name+"-old", loadedBots) }

// publishers publish until there are enough new bots and done is closed.
func (w *world) publishers(ctx context.Context, name string, bots int, l *load, done <-chan struct{}) error {
	tick := time.NewTicker(betweenEvents)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if i >= bots && closed(done) {
			return nil
		}
		if i < bots {
			if err := w.send(ctx, tidemill.TypeBotCreated, fmt.Sprintf("%s-new-%d", name, i), &l.bots, l); err != nil {
				return err
			}
		}
		for j := range messagesEach {
			if err := w.send(ctx, "message", taught(name)[(i+j)%loadedBots], &l.messages, l); err != nil {
				return err
			}
		}
		select {
		case l.sent <- struct{}{}:
		default:
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (w *world) send(ctx context.Context, kind, subject string, to *[]accepted, l *load) error {
	data := ""
	if kind == "message" {
		data = message
	}
	sending, cancel := context.WithTimeout(ctx, publishPatience)
	defer cancel()
	a, err := w.publish(sending, kind, subject, data)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	*to = append(*to, a)
	return nil
}

// judge checks the accepted events: each new bot has one run with one Job and a promoted model,
// each message is scored once, and there are no dead letters.
func (w *world) judge(t *testing.T, name string, l *load) {
	t.Helper()
	var bots, messages []string
	for _, a := range l.bots {
		bots = append(bots, a.Subject)
	}
	for _, a := range l.messages {
		messages = append(messages, a.ID)
	}
	w.journal.waitUntil(t, "each new bot's model", func() (string, bool) {
		left := namesWithoutEvent(bots, w.journal.events(oneOf(tidemill.TypeModelPromoted, bots)), func(e entry) string { return e.Subject })
		return fmt.Sprintf("%d of %d have none, such as %.5v", len(left), len(bots), left), len(left) == 0
	})
	w.journal.waitUntil(t, "each message's score", func() (string, bool) {
		left := namesWithoutEvent(messages, w.journal.events(scoredOnly), cause)
		return fmt.Sprintf("%d of %d are not scored, such as %.5v", len(left), len(messages), left), len(left) == 0
	})
	times := map[string]int{}
	for _, e := range w.journal.events(scoredOnly) {
		times[cause(e)]++
	}
	for _, id := range messages {
		if times[id] != 1 {
			t.Errorf("the message %s was scored %d times", id, times[id])
		}
	}
	w.onlyOneJob(t, append(bots, taught(name)...), "intent")
	w.noLetters(t, append(bots, taught(name)...))
	t.Logf("%d new bots, %d messages", len(bots), len(messages))
}

func scoredOnly(e entry) bool { return e.Type == tidemill.TypeScored }

func cause(e entry) string { return e.attribute("causationid") }

// namesWithoutEvent returns the names for which there is no event.
func namesWithoutEvent(all []string, events []entry, about func(entry) string) []string {
	met := map[string]bool{}
	for _, e := range events {
		met[about(e)] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return met[s] })
}
