package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// recreate deletes the stream of facts and creates it again.
func (w *world) recreate(partitions int) {
	w.t.Helper()
	client := kafka.Client{Addr: kafka.TCP(w.address)}
	_, err := client.DeleteTopics(w.t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{w.names.Topic(tidemill.StreamFacts)}})
	must(w.t, err)
	w.ensure(partitions)
	w.produce, err = w.broker.Producer(broker.ProducerOptions{})
	must(w.t, err)
	w.t.Cleanup(func() { _ = w.produce.Close(context.Background()) })
}

// requests puts a request for a run of each of some keys on the log.
func (w *world) requests(s *script, prefix string, from, to int) {
	w.t.Helper()
	for i := from; i < to; i++ {
		v, _ := s.runRequest("intent", fmt.Sprint(prefix, "-", i), "c", nil)
		_, err := w.produce.Publish(w.t.Context(), tidemill.StreamFacts, v)
		must(w.t, err)
	}
}

// knows waits until a ledger knows some keys, and checks that it knows none of another log.
func (w *world) knows(l *ledger.Ledger, prefix string, keys int, gone string) {
	w.t.Helper()
	waiting := func(key string) bool {
		m, err := l.Making(w.t.Context(), "intent", key)
		if err != nil && !errors.Is(err, ledger.ErrCatchingUp) {
			w.t.Fatal(err)
		}
		return err == nil && m.Waiting != nil
	}
	waitUntil(w.t, l, "it does not know the new facts", func() bool {
		for i := range keys {
			if !waiting(fmt.Sprint(prefix, "-", i)) {
				return false
			}
		}
		return true
	})
	for i := range 20 {
		if key := fmt.Sprint(gone, "-", i); waiting(key) {
			w.t.Errorf("%s waits, and its fact is on no log", key)
		}
	}
	w.waitSettled(l)
	w.checkSame(w.modelOf())
}

// The log is deleted and created again while a ledger runs, first shorter than before.
func TestFactsAreCutWhileItRuns(t *testing.T) {
	w, s := newWorld(t, 1), &script{}
	l := w.open()
	w.requests(s, "old", 0, 20)
	w.waitSettled(l)
	w.recreate(1)
	w.requests(s, "new", 0, 12)
	w.knows(l, "new", 12, "old")
	w.requests(s, "new", 12, 30)
	w.knows(l, "new", 30, "old")
	w.knows(w.open(), "new", 30, "old")
}

// The fleet of a log with the same offsets as the one before has the keys of the new log.
func TestFleetOfAnotherLog(t *testing.T) {
	w, s := newWorld(t, 1), &script{}
	l := w.open()
	w.requests(s, "old", 0, 3)
	w.waitSettled(l)
	w.checkFleet(l, w.foldLog())
	w.recreate(1)
	w.requests(s, "new", 0, 3)
	w.knows(l, "new", 3, "old")
	w.checkFleet(l, w.foldLog())
}

// After the log was cut, a fact gets an offset that the ledger has folded already. Append does not
// take it for folded.
func TestAppendToALogThatWasCut(t *testing.T) {
	w, s := newWorld(t, 1), &script{}
	l := w.open()
	w.requests(s, "old", 0, 20)
	w.waitSettled(l)
	w.recreate(1)
	v, id := s.runRequest("intent", "new", "c", nil)
	if m := w.add(l, v); m.Waiting == nil || m.Waiting.ID != id {
		t.Errorf("the making of a fact on the log is %+v", m)
	}
	w.waitSettled(l)
	w.checkSame(w.modelOf())
}

// While no ledger runs, the log is replaced by a longer one.
func TestAnotherLongerLog(t *testing.T) {
	w, s := newWorld(t, 1), &script{}
	l := w.open()
	w.requests(s, "old", 0, 20)
	w.waitSettled(l)
	must(t, l.Close(t.Context()))
	w.recreate(1)
	w.requests(s, "new", 0, 30)
	w.knows(w.open(), "new", 30, "old")
}

// The log is as long as before, and differs only in its last facts, as after an election of a server
// that had not all facts.
func TestALogWithOtherLastFacts(t *testing.T) {
	w, s := newWorld(t, 1), &script{at: time.Now().Add(-time.Hour)}
	l := w.open()
	w.requests(s, "same", 0, 20)
	w.requests(s, "old", 0, 1)
	w.waitSettled(l)
	must(t, l.Close(t.Context()))
	w.recreate(1)
	again := &script{at: time.Now().Add(-time.Hour)}
	w.requests(again, "same", 0, 20)
	w.requests(again, "new", 0, 3)
	w.knows(w.open(), "new", 3, "old")
}

// The beginning of the log was deleted. Redis has these facts, so the ledger goes on. But an empty
// Redis cannot be filled: the ledger stops.
func TestTheBeginningOfTheFactsIsGone(t *testing.T) {
	server, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(server.Close)
	w, s := worldOn(t, strings.Join(server.ListenAddrs(), ","), redisAlone(t), 1), &script{}
	l := w.open()
	w.requests(s, "old", 0, 20)
	w.waitSettled(l)
	must(t, server.DeleteRecords(w.names.Topic(tidemill.StreamFacts), 0, 10))
	v, _ := s.runRequest("intent", "more", "c", nil)
	w.add(l, v)
	w.add(w.open(), v)
	must(t, w.redis.FlushAll(t.Context()).Err())
	w.stopped(l, "were deleted from the log")
	w.stopped(w.openWith(w.options()), "were deleted from the log")
}

// Facts are deleted while a running ledger does not get them. It stops, says so, and folds none after them.
func TestFactsAreGoneBeforeTheyAreRead(t *testing.T) {
	server, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(server.Close)
	w, s := worldOn(t, strings.Join(server.ListenAddrs(), ","), redisAlone(t), 1), &script{}
	l := w.open()
	w.requests(s, "read", 0, 20)
	w.waitSettled(l)
	before := w.redisContent()
	var refuses atomic.Bool
	var refused atomic.Int32
	server.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		server.KeepControl()
		if refuses.Load() {
			refused.Add(1)
			return nil, errors.New("the connection is cut"), true
		}
		return nil, nil, false
	})
	refuses.Store(true)
	waitUntil(t, l, "it reads", func() bool { return refused.Load() > 0 })
	w.requests(s, "gone", 0, 20)
	must(t, server.DeleteRecords(w.names.Topic(tidemill.StreamFacts), 0, 30))
	refuses.Store(false)
	w.stopped(l, "were deleted from the log")
	if after := w.redisContent(); !reflect.DeepEqual(before, after) {
		t.Errorf("Redis has\n%v\nand had\n%v", after, before)
	}
}
