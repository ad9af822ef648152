package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

// patience bounds waits; it only ends hangs.
const patience = 2 * time.Minute

// world is a laptop's Kafka and Redis with the streams of the clock.
type world struct {
	*testing.T
	b     *broker.Broker
	redis *redis.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	servers, err := embedded.Start(t.Context(), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.Close() })
	w := open(t, servers.Kafka())
	w.redis = redis.NewClient(&redis.Options{Addr: servers.Redis()})
	t.Cleanup(func() { _ = w.redis.Close() })
	return w
}

func open(t *testing.T, kafka string) *world {
	t.Helper()
	w := &world{T: t}
	var err error
	w.b, err = broker.Open(t.Context(), broker.Options{Addr: kafka, Names: names(t)})
	w.must(err)
	t.Cleanup(func() { w.must(w.b.Close()) })
	_, err = w.b.EnsureStreams(t.Context(), []broker.StreamSpec{
		{Name: tidemill.StreamEvents, Partitions: 3, KeyOrdered: true}, {Name: tidemill.StreamClock, Partitions: 1, KeyOrdered: true}}, broker.EnsureOptions{})
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.Context()), patience)
	w.Cleanup(cancel)
	return ctx
}

// poll waits until a condition holds.
func (w *world) poll(what string, is func() bool) {
	w.Helper()
	ctx := w.ctx()
	for tick := time.NewTicker(20 * time.Millisecond); !is(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("waited too long: %s", what)
		}
	}
}

// controller starts a controller with a lease that is short enough for tests.
func (w *world) controller(o Options, schedules ...config.Schedule) *Controller {
	w.Helper()
	o.Broker, o.Names, o.Config, o.Verify = w.b, names(w.T), &config.Config{Schedules: schedules}, true
	if o.Lease == 0 {
		o.Lease = 500 * time.Millisecond
	}
	k, err := Open(o)
	w.must(err)
	w.Cleanup(func() { w.close(k) })
	return k
}

func (w *world) close(k *Controller) {
	w.Helper()
	if err := k.Close(w.ctx()); err != nil {
		w.Error(err)
	}
}

func (w *world) active(k *Controller) {
	w.Helper()
	w.poll("the controller is active", func() bool { return k.Status().Active })
}

// committedEvents returns the committed events of the events' stream.
func (w *world) committedEvents() (all []broker.View) {
	w.Helper()
	ends, err := w.b.Ends(w.ctx(), tidemill.StreamEvents)
	w.must(err)
	for i := range ends {
		ends[i].Offset = 0
	}
	_, err = w.b.ReadBack(w.ctx(), ends, func(e *broker.Incoming) { all = append(all, e.View.Clone()) })
	w.must(err)
	return all
}

// firings counts the ticks by scheduled time and key.
func (w *world) firings() map[string]int {
	w.Helper()
	count := map[string]int{}
	for _, v := range w.committedEvents() {
		count[v.Time+" "+v.Subject]++
	}
	return count
}

// everySecond returns a schedule that ticks each second for each key and sends all missed ticks.
func everySecond(keys ...string) config.Schedule {
	return config.Schedule{Name: "s", Cron: "* * * * * *", TimeZone: "UTC", Missed: config.MissedAll, Keys: keys}
}

// checkWhole checks that every second between the first and the last tick has exactly one tick
// for each key.
func (w *world) checkWhole(keys ...string) {
	w.Helper()
	w.wholeOf(func(string) bool { return true }, keys...)
}

// wholeOf is whole for some of the keys.
func (w *world) wholeOf(some func(key string) bool, keys ...string) {
	w.Helper()
	count := w.firings()
	maps.DeleteFunc(count, func(name string, _ int) bool { return !some(name[21:]) })
	names := slices.Sorted(maps.Keys(count))
	if len(names) == 0 {
		w.Fatal("nothing has ticked")
	}
	first, last := names[0][:20], names[len(names)-1][:20]
	from, err := time.Parse(time.RFC3339, first)
	w.must(err)
	want := 0
	for at := from; stamp(at) <= last; at = at.Add(time.Second) {
		for _, key := range keys {
			want++
			if name := stamp(at) + " " + key; count[name] != 1 {
				w.Errorf("%s is there %d times", name, count[name])
			}
		}
	}
	if want != len(count) {
		w.Errorf("%d ticks, want %d", len(count), want)
	}
	w.Logf("%d ticks from %s to %s", want, first, last)
}

// write writes only a mark, as a controller does.
func (w *world) write(m mark) {
	w.Helper()
	x, err := w.b.Exclusive(w.ctx(), reader, broker.ProducerOptions{})
	w.must(err)
	defer func() { w.must(x.Close(w.ctx())) }()
	v, err := m.view(names(w.T), 0)
	w.must(err)
	w.must(x.Do(w.ctx(), func(tx *broker.ExclusiveTx) error {
		tx.Send(w.ctx(), tidemill.StreamClock, &v)
		return nil
	}))
}

func (w *world) ends() (all []place) {
	w.Helper()
	ends, err := w.b.Ends(w.ctx(), tidemill.StreamEvents)
	w.must(err)
	for _, end := range ends {
		all = append(all, place{end.Stream, end.Partition, end.Offset})
	}
	return all
}

func (w *world) send(t tick) {
	w.Helper()
	p, err := w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	v := t.view(names(w.T))
	_, err = p.Publish(w.ctx(), tidemill.StreamEvents, &v)
	w.must(err)
	w.must(p.Close(w.ctx()))
}

func missedOf(v *broker.View) (n int, err error) {
	var data tickData
	err = json.Unmarshal(v.Data, &data)
	return data.Missed, err
}

func keysOf(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("bot-", i))
	}
	return all
}
