package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// comingLater is a resolver that finds its service once the URL is set.
type comingLater struct {
	at    atomic.Pointer[url.URL]
	asked atomic.Int64
}

func (c *comingLater) resolve(_ context.Context, to config.Target) (*url.URL, error) {
	c.asked.Add(1)
	if at := c.at.Load(); at != nil {
		return at, nil
	}
	return nil, fmt.Errorf("the service %s is %w: RevisionMissing", to.Service, ErrNotYet)
}

func (c *comingLater) come(t testing.TB, text string) {
	at, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c.at.Store(at)
}

func (w *install) openWith(resolve Resolver) *Dispatcher {
	w.Helper()
	d, err := Open(w.ctx, Options{Broker: w.dial(), Config: w.config, Logger: w.log, SessionTimeout: w.session, Resolve: resolve})
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = d.Close(ctx)
	})
	w.opened = append(w.opened, d)
	w.must(d.Ready(w.ctx))
	return d
}

func standingOf(d *Dispatcher, trigger string) Standing {
	all := d.Standing()
	return all[slices.IndexFunc(all, func(s Standing) bool { return s.Name == trigger })]
}

// An event waits if its subscriber does not exist yet. However often the resolver is
// asked, this does not count as an attempt, so a trigger with a single attempt makes no
// dead letter. No other trigger waits, and in the end each key's events come in order.
func TestWhoIsNotThereYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	late, other, there := newSink(t, nil), newSink(t, nil), &comingLater{}
	w.trigger("late", "", func(t *config.Trigger) { t.To.Service, t.Delivery.Attempts = "writer", 1 })
	w.trigger("other", other.url, nil)
	d := w.openWith(there.resolve)
	w.publish(40, 5)
	w.waitFor("the other has all", func() bool { return other.count() == 40 })
	w.waitFor("it waits and is parked", func() bool { return parkedOf(d, "late") == 40 })
	asked := there.asked.Load()
	w.waitFor("it is asked for again and again", func() bool { return there.asked.Load() > asked+3 })
	w.publish(10, 5) // these events come while the trigger waits
	s := standingOf(d, "late")
	if s.Failed != 0 || s.LastError != "" || !strings.Contains(s.Waits, "the service writer is not there yet: RevisionMissing") {
		t.Errorf("its standing is %+v", s)
	}
	there.come(t, late.url)
	w.waitFor("the late one has all", func() bool { return late.count() == 50 })
	w.waitFor("the last answer is counted, and nobody waits", func() bool { s := standingOf(d, "late"); return s.Delivered >= 50 && s.Waits == "" })
	if s := standingOf(d, "late"); s.Failed != 0 {
		t.Errorf("its standing in the end is %+v", s)
	}
	late.inOrder()
	if n := len(w.letters()); n != 0 {
		t.Errorf("there are %d dead letters", n)
	}
}

// authorization returns the Authorization header of an event's request.
func (s *sink) authorization(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header[id].Get("Authorization")
}

// A trigger with a new target no longer waits for the old one.
func TestATriggerThatIsAimedElsewhereWaitsNoMore(t *testing.T) {
	w := newInstall(t, 1)
	here, nobody := newSink(t, nil), &comingLater{}
	w.trigger("a", "", func(t *config.Trigger) { t.To.Service = "writer" })
	d := w.openWith(nobody.resolve)
	w.publish(3, 1)
	w.waitFor("it waits", func() bool { return standingOf(d, "a").Waits != "" })
	w.trigger("a", here.url, nil)
	w.must(d.Apply(w.ctx, w.config))
	w.waitFor("it is delivered", func() bool { return here.count() == 3 })
}

// Any other error of a resolver is a failed attempt.
func TestAResolverThatFailsIsAnAttempt(t *testing.T) {
	w := newInstall(t, 1)
	w.trigger("a", "", func(t *config.Trigger) { t.To.Service, t.Delivery.Attempts = "writer", 2 })
	w.openWith(func(context.Context, config.Target) (*url.URL, error) { return nil, errors.New("no service of ours") })
	w.publish(1, 1)
	w.waitFor("there is a dead letter", func() bool { return len(w.letters()) == 1 })
}

// Only Tidemill's own functions get the token.
func TestOnlyOurFunctionsGetTheToken(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	ours, theirs, service := newSink(t, nil), newSink(t, nil), newSink(t, nil)
	w.trigger("ours", "", func(t *config.Trigger) { t.To = config.Target{Function: "train", Recipe: "intent"} })
	w.trigger("theirs", theirs.url, nil)
	w.trigger("service", "", func(t *config.Trigger) { t.To.Service = "writer" })
	d, err := Open(w.ctx, Options{Broker: w.dial(), Config: w.config, Logger: w.log, SessionTimeout: w.session, Bearer: "s3cret",
		Resolve: func(_ context.Context, to config.Target) (*url.URL, error) {
			if to.Function != "" {
				return url.Parse(ours.url)
			}
			return url.Parse(service.url)
		}})
	w.must(err)
	w.Cleanup(func() { _ = d.Close(context.Background()) })
	w.must(d.Ready(w.ctx))
	w.publish(1, 1)
	w.waitFor("all have it", func() bool { return ours.count() == 1 && theirs.count() == 1 && service.count() == 1 })
	for name, s := range map[string]*sink{"Bearer s3cret": ours, "": theirs} {
		if got := s.authorization("0"); got != name {
			t.Errorf("it got the token %q, not %q", got, name)
		}
	}
	if got := service.authorization("0"); got != "" {
		t.Errorf("a service got the token %q", got)
	}
}

// recordForgotten records that a key was forgotten at the present end of the events, and returns the offset after
// the command.
func (w *install) recordForgotten(key string) int64 {
	w.Helper()
	ends, err := w.b.Ends(w.ctx, tidemill.StreamEvents)
	w.must(err)
	id, err := w.b.TopicID(w.ctx, tidemill.StreamEvents)
	w.must(err)
	d := tidemill.KeyPassedData{Ends: map[string][]int64{tidemill.StreamEvents: make([]int64, len(ends))}, Topics: map[string]string{tidemill.StreamEvents: id}}
	for _, e := range ends {
		d.Ends[tidemill.StreamEvents][e.Partition] = e.Offset
	}
	data, err := json.Marshal(d)
	w.must(err)
	v := broker.View{ID: key + id, Source: "/test", Type: tidemill.TypeKeyPassed, Subject: key, Data: data, DataContentType: "application/json"}
	at, err := w.p.Publish(w.ctx, tidemill.StreamCommands, &v)
	w.must(err)
	return at.Offset + 1
}

// park lets ten events of each of ten keys wait for a sink that is away.
func (w *install) park() (*sink, *Dispatcher) {
	w.Helper()
	to := newSink(w, func(string, int) int { return 503 })
	w.trigger("a", to.url, func(t *config.Trigger) {
		t.Delivery.Attempts = 1000
		t.Delivery.Backoff.First = 300 * time.Millisecond
	})
	d := w.open()
	w.publish(100, 10) // ten events of each key
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 100 && w.committed() })
	return to, d
}

// Waiting events of a forgotten key are not delivered when their time comes, and become
// no dead letters. Other keys get all of their events, and so does the key if it is used
// again. This also holds for a dispatcher that starts later.
func TestAKeyThatHasGoneGetsNothing(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"goes on": false, "comes later": true} {
		t.Run(name, func(t *testing.T) {
			w := newInstall(t, 2)
			to, d := w.park()
			if restart {
				w.close(d)
			}
			heard := w.recordForgotten("k3")
			w.publish(10, 10) // one more event of each key
			if restart {
				d = w.open()
			}
			w.waitFor("it has been heard", func() bool { return d.commands.Now().Next() >= heard })
			to.set(nil)
			w.waitFor("nothing is parked", func() bool { return to.count() >= 100 && parkedOf(d, "a") == 0 })
			to.inOrder()
			to.mu.Lock()
			defer to.mu.Unlock()
			if got := to.byKey["k3"]; !slices.Equal(got, []string{"103"}) {
				t.Errorf("the key that has gone got %v", got)
			}
			if got := len(to.byKey["k4"]); got != 11 {
				t.Errorf("another key got %d events", got)
			}
			if all := w.letters(); len(all) > 0 {
				t.Errorf("there are %d dead letters", len(all))
			}
		})
	}
}

// The key of an event is its partitionkey, also if it has a subject. Either may be the key that is forgotten.
func TestAForgottenPartitionkeyGetsNothing(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to, d := w.park()
	for n, key := range []string{"k3", "k4"} {
		v := broker.View{ID: fmt.Sprint(200 + n), Source: "/shop", Type: "order", Subject: "note", Extensions: []broker.Attribute{{Name: tidemill.AttrPartitionKey, Value: key}}}
		_, err := w.p.Publish(w.ctx, tidemill.StreamEvents, &v)
		w.must(err)
	}
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 102 && w.committed() })
	heard := w.recordForgotten("k3")
	w.waitFor("it has been heard", func() bool { return d.commands.Now().Next() >= heard })
	to.set(nil)
	w.waitFor("nothing is parked", func() bool { return to.count() >= 91 && parkedOf(d, "a") == 0 })
	to.mu.Lock()
	defer to.mu.Unlock()
	if got := to.byKey["note"]; !slices.Equal(got, []string{"201"}) {
		t.Errorf("of the notes came %v", got)
	}
}

// recreate deletes the stream events and creates it again, and waits until the dispatcher reads the new one.
func (w *install) recreate(d *Dispatcher) {
	w.Helper()
	client := &kafka.Client{Addr: kafka.TCP(w.servers.Kafka())}
	_, err := client.DeleteTopics(w.ctx, &kafka.DeleteTopicsRequest{Topics: []string{w.names.Topic(tidemill.StreamEvents)}})
	w.must(err)
	w.ensure()
	id, err := w.b.TopicID(w.ctx, tidemill.StreamEvents)
	w.must(err)
	pl := d.pipelines[tidemill.StreamEvents]
	w.waitFor("the new stream is read", func() bool {
		return !slices.ContainsFunc([]int32{0, 1}, func(n int32) bool {
			return pl.Topic(broker.Position{Stream: tidemill.StreamEvents, Partition: n, Offset: math.MaxInt64}) != id
		})
	})
}

// Waiting events of a forgotten key are not delivered if the stream was created again, whether they are of the old
// stream or of the new one. Events after the forgetting are delivered, also if their new stream is shorter.
func TestAKeyIsForgottenInAStreamThatIsCreatedAgain(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"goes on": false, "comes later": true} {
		t.Run(name, func(t *testing.T) {
			w := newInstall(t, 2)
			to, d := w.park()
			w.recordForgotten("k4")
			w.recreate(d)
			w.publish(20, 10)
			w.waitFor("all is parked", func() bool { return parkedOf(d, "a") >= 110 && w.committed() })
			if restart {
				w.close(d)
			}
			heard := w.recordForgotten("k3")
			w.publish(10, 10)
			if restart {
				d = w.open()
			}
			w.waitFor("it has been heard", func() bool { return d.commands.Now().Next() >= heard })
			to.set(nil)
			w.waitFor("nothing is parked", func() bool { return to.count() >= 8*13+1+3 && parkedOf(d, "a") == 0 })
			to.mu.Lock()
			defer to.mu.Unlock()
			for key, want := range map[string][]string{"k3": {"123"}, "k4": {"104", "114", "124"}} {
				if got := to.byKey[key]; !slices.Equal(got, want) {
					t.Errorf("key %s, which was forgotten, got %v", key, got)
				}
			}
			if got := len(to.byKey["k5"]); got != 13 {
				t.Errorf("another key got %d events", got)
			}
		})
	}
}
