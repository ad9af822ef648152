package champions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// makeModel makes a model with two versions, of which the first is the champion.
func (w *world) makeModel(s *script, name string) {
	w.publish(s.register(name, 1))
	w.publish(s.register(name, 2))
	w.publish(s.promote(name, 1, 0, 0))
}

// waitChampion waits until a model has a champion.
func (w *world) waitChampion(t *Table, name string, version int) {
	w.Helper()
	w.waitUntil(fmt.Sprintf("%s@%d", name, version), func() bool { now, _ := t.Champion(name); return now.Version == version })
}

// A promotion during the reading of the table is followed and announced.
func TestChangesAreTold(t *testing.T) {
	w, s := newWorld(t, 2), &script{}
	w.makeModel(s, "intent/a")
	told := make(chan string, 10)
	o := w.options()
	o.Changed = func(model string, now Champion) { told <- tidemill.VersionName(model, now.Version) }
	table := w.open(o)
	now, ok := table.Champion("intent/a")
	if !ok || now.Version != 1 || now.Turn != 1 || now.Key != "key of intent/a" {
		t.Errorf("it begins with %+v", now)
	}
	if now, ok := table.Champion("intent/b"); ok {
		t.Errorf("a model that nobody made has %+v", now)
	}
	w.publish(s.promote("intent/a", 2, 1, 1))
	w.makeModel(s, "intent/b")
	w.publish(s.fact(tidemill.TypeModelRetired, "intent/a", "", tidemill.ModelRetired{Asked: time.Now()}))
	all := map[string]bool{<-told: true, <-told: true, <-told: true}
	if !all["intent/a@2"] || !all["intent/b@1"] || !all["intent/a@0"] || len(told) > 0 {
		t.Errorf("told of %v", all)
	}
	if now, ok := table.Champion("intent/a"); ok {
		t.Errorf("a model whose key has gone has %+v", now)
	}
	if now, _ := table.Champion("intent/b"); now.Artifact != artifactOf(1) {
		t.Errorf("it has the files %q", now.Artifact)
	}
}

// A caller that waits for a place sees the facts before it, even if the last record is not a fact.
// A place that the log does not have is an error.
func TestReached(t *testing.T) {
	w, s := newWorld(t, 3), &script{}
	w.makeModel(s, "intent/a")
	table := w.open(w.options())
	x, err := w.broker.Exclusive(w.ctx(), "test", broker.ProducerOptions{})
	w.must(err)
	defer x.Close(context.Background())
	w.must(x.Do(w.ctx(), w.send(s.promote("intent/a", 2, 1, 1)))) // transaction marker after the fact
	places := w.endPlaces()
	w.must(table.Reached(w.ctx(), places))
	if now, _ := table.Champion("intent/a"); now.Version != 2 {
		t.Errorf("the table has reached %v and shows %+v", places, now)
	}
	w.must(table.Reached(w.ctx(), nil))
	w.must(table.Reached(w.ctx(), []int64{0, 0, 0, 0}))
	places[1]++
	for _, gone := range [][]int64{places, {0, 0, 0, 1}} {
		if err := table.Reached(w.ctx(), gone); !errors.Is(err, errFactsLost) || !strings.Contains(err.Error(), "docs/runbooks/") {
			t.Errorf("waited for %v: %v", gone, err)
		}
	}
	w.waitUntil("a place in each partition", func() bool { return len(table.Places()) == 3 }) // also in a partition without facts
}

// A caller that knows only the sum of places waits for all facts that are on the log. A sum that the
// log does not have is an error.
func TestReachedTotal(t *testing.T) {
	w, s := newWorld(t, 3), &script{}
	w.makeModel(s, "intent/a")
	table := w.open(w.options())
	w.publish(s.promote("intent/a", 2, 1, 1))
	total := int64(0)
	for _, place := range w.endPlaces() {
		total += place
	}
	w.must(table.ReachedTotal(w.ctx(), total))
	if now, _ := table.Champion("intent/a"); now.Version != 2 {
		t.Errorf("the table has reached the sum %d and shows %+v", total, now)
	}
	if err := table.ReachedTotal(w.ctx(), total+1); !errors.Is(err, errFactsLost) {
		t.Errorf("waited for the sum %d of %d: %v", total+1, total, err)
	}
}

// A wait fails if its context ends while the table lacks facts of the log.
func TestReachedInVain(t *testing.T) {
	w := newWorld(t, 1)
	table := w.open(w.options())
	w.must(table.Close(context.Background()))
	w.publish((&script{}).register("intent/a", 1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := table.Reached(ctx, w.endPlaces()); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("error is %v", err)
	}
}

// While Redis is filled again, a table is not opened with only some models, and a request for a
// version's artifact waits.
func TestRedisIsFlushedWhileTablesAreOpened(t *testing.T) {
	w, s := newWorld(t, 2), &script{}
	const models = 60
	for n := range models {
		w.makeModel(s, fmt.Sprint("intent/bot-", n))
	}
	for range 8 {
		for n, table := 0, w.openDuringFlush(); n < models; n++ {
			name := fmt.Sprint("intent/bot-", n)
			now, ok := table.Champion(name)
			if !ok || now.Version != 1 {
				t.Errorf("%s has the champion %+v", name, now)
			}
		}
	}
	table := w.open(w.options())
	w.must(w.redis.FlushAll(t.Context()).Err())
	if files, err := table.Artifact(w.ctx(), "intent/bot-1", 2); err != nil || files != artifactOf(2) {
		t.Errorf("it has the files %q: %v", files, err)
	}
	if _, err := table.Artifact(w.ctx(), "intent/bot-1", 7); err == nil || !strings.Contains(err.Error(), "intent/bot-1@7") {
		t.Errorf("error is %v", err)
	}
}

// openDuringFlush opens a table while Redis is flushed again and again. The flushes stop in the end,
// because filling the ledger may take longer than the time between two.
func (w *world) openDuringFlush() *Table {
	w.Helper()
	var flushing sync.WaitGroup
	stop := make(chan struct{})
	flushing.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range 25 {
			select {
			case <-tick.C:
				if err := w.redis.FlushAll(w.Context()).Err(); err != nil {
					w.Error(err)
				}
			case <-stop:
				return
			}
		}
	})
	defer flushing.Wait()
	defer close(stop)
	return w.open(w.options())
}

// A stream of facts that is deleted and created again has another history. The old champions
// disappear, and a warning is logged.
func TestFactsBegunAnew(t *testing.T) {
	w, s := newWorld(t, 1), &script{}
	w.makeModel(s, "intent/a")
	w.makeModel(s, "intent/b")
	told, said := make(chan change, 10), make(chan struct{}, 10)
	o := w.options()
	o.Changed = func(model string, now Champion) { told <- change{model, now} }
	o.Logger = slog.New(warnSignal{o.Logger.Handler(), said})
	table := w.open(o)
	topic := w.names.Topic(tidemill.StreamFacts)
	client := &kafka.Client{Addr: kafka.TCP(w.address)}
	gone, err := client.DeleteTopics(w.ctx(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	w.must(err)
	w.must(gone.Errors[topic])
	w.ensure(1)
	w.publish(s.register("intent/a", 7))
	w.publish(s.promote("intent/a", 1, 0, 0))
	<-said // the warning, which may be over before the test reads Err
	w.must(w.redis.FlushAll(w.ctx()).Err())
	now := map[string]Champion{"intent/b": {Version: 1}}
	for now["intent/a"].Version != 1 || now["intent/a"].Turn != 1 || now["intent/b"].Version != 0 { // the table may have been read before the new facts came
		c := <-told
		now[c.model] = c.now
	}
	w.waitUntil("the table comes on", func() bool { return table.Err() == nil })
	w.publish(s.register("intent/a", 8))
	w.publish(s.promote("intent/a", 2, 1, 1))
	w.waitChampion(table, "intent/a", 2)
}

// The stream is deleted and created again, and is soon longer than before. The table has no champion of
// the old stream.
func TestFactsBegunAnewAndLonger(t *testing.T) {
	w, s := newWorld(t, 1), &script{}
	w.makeModel(s, "intent/old")
	table := w.open(w.options())
	table.stop() // it reads on when the new stream is longer
	table.running.Wait()
	topic := w.names.Topic(tidemill.StreamFacts)
	client := &kafka.Client{Addr: kafka.TCP(w.address)}
	gone, err := client.DeleteTopics(w.ctx(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	w.must(err)
	w.must(gone.Errors[topic])
	w.ensure(1)
	for i := range 3 {
		w.publish(s.register("intent/new", i+1))
	}
	w.publish(s.promote("intent/new", 2, 0, 0))
	life, stop := context.WithCancel(context.Background())
	table.stop = stop
	table.running.Go(func() { table.run(life) })
	w.waitChampion(table, "intent/new", 2)
	w.waitUntil("the old champion is gone", func() bool { _, has := table.Champion("intent/old"); return !has })
	w.must(table.Reached(w.ctx(), w.endPlaces()))
}

// warnSignal signals that a warning was logged.
type warnSignal struct {
	slog.Handler
	said chan<- struct{}
}

// Handle is the method of slog.Handler.
func (h warnSignal) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		select {
		case h.said <- struct{}{}:
		default:
		}
	}
	return h.Handler.Handle(ctx, r)
}

// After partitions are added, the order of a model's facts is not known.
func TestFactsOnMorePartitions(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, 1), &script{}
	w.makeModel(s, "intent/a")
	table := w.open(w.options())
	w.must(table.Err())
	client := &kafka.Client{Addr: kafka.TCP(w.address)}
	_, err := client.CreatePartitions(t.Context(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: w.names.Topic(tidemill.StreamFacts), Count: 2}}})
	w.must(err)
	w.waitUntil("the table says what is wrong", func() bool {
		err := table.Err()
		return err != nil && strings.Contains(err.Error(), "had 1 partitions and has 2")
	})
	w.must(table.Reached(w.ctx(), w.endPlaces()))
}

func TestNothingIsOpenedWithoutItsNeeds(t *testing.T) {
	w := newWorld(t, 1)
	for name, o := range map[string]Options{"no broker": {Ledger: w.ledger}, "no ledger": {Broker: w.broker}} {
		if _, err := Open(t.Context(), o); err == nil {
			t.Errorf("opened with %s", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, w.options()); !errors.Is(err, context.Canceled) {
		t.Errorf("opened without time: %v", err)
	}
}

// A key may be an address such as svc@canary. The name of its model is not that of a canary.
func TestNoModelHasTheNameOfACanary(t *testing.T) {
	t.Parallel()
	const model = "intent/svc@canary"
	if of, is := CutCanary(model); is || of != model {
		t.Errorf("%s is the canary of %s", model, of)
	}
	if of, is := CutCanary(CanaryName(model)); !is || of != model || tidemill.CheckDataset(CanaryName(model)) == nil {
		t.Errorf("a model may have the name %q", CanaryName(model))
	}
}
