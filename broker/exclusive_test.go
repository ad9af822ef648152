package broker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (h *hostile) exclusive() *Exclusive {
	h.Helper()
	e, err := h.b.Exclusive(h.ctx(), "clock", ProducerOptions{})
	h.must(err)
	h.Cleanup(func() { _ = e.Close(h.ctx()) })
	return e
}

// tick sends an event and marks its number.
func (h *hostile) tick(e *Exclusive, n int) error {
	return e.Do(h.ctx(), func(x *ExclusiveTx) error {
		x.SendTo(h.ctx(), "out", 0, hostileEvent(n), nil)
		x.Mark("clock", Position{Stream: "events", Offset: int64(n + 1)})
		return nil
	})
}

func (h *hostile) ticked() int {
	h.Helper()
	all, err := h.b.Committed(h.ctx(), "clock", []Position{{Stream: "events"}})
	h.must(err)
	return int(max(0, all[0].Offset))
}

// wantTicks checks that as many are on the log as are marked, and that it goes on.
func (h *hostile) wantTicks(e *Exclusive, n int) {
	h.Helper()
	if at := h.ticked(); at != n {
		h.Errorf("%d are marked, want %d", at, n)
	}
	h.must(h.tick(e, n))
	ids := 0
	_, err := h.b.ReadBack(h.ctx(), []Position{{Stream: "out"}}, func(*Incoming) { ids++ })
	if h.must(err); ids != n+1 {
		h.Errorf("%d are on the log, want %d", ids, n+1)
	}
}

// Whatever step of a transaction is refused for once, it leaves no trace and the
// next one runs, without taking the name anew from whoever might have it.
func TestExclusiveSurvivesFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault kfake.Fault
	}{
		{"sequence lost", kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber}},
		{"id forgotten", kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: kerr.InvalidProducerIDMapping}},
		{"group refused", kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.GroupAuthorizationFailed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t, 1)
			e := h.exclusive()
			h.must(h.tick(e, 0))
			anew := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Count: -1, Observe: true, TopLevel: true,
				When: func(r kmsg.Request) bool {
					init := r.(*kmsg.InitProducerIDRequest)
					return init.TransactionalID != nil && init.ProducerID < 0
				}})
			h.kafka.Fault(c.fault)
			if err := h.tick(e, 1); !errors.Is(err, ErrAborted) || errors.Is(err, ErrInDoubt) || errors.Is(err, ErrSuperseded) {
				t.Errorf("error is %v", err)
			}
			h.wantTicks(e, 1)
			if n := anew.Hits(); n > 0 {
				t.Errorf("the name was taken %d times", n)
			}
		})
	}
}

// The id cannot be opened anew for a while: the next transaction does it.
func TestExclusiveOpensLater(t *testing.T) {
	h := newHostile(t, 1)
	e := h.exclusive()
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber})
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, TopLevel: true, Count: 1})
	if err := h.tick(e, 0); !errors.Is(err, ErrAborted) || !errors.Is(err, kafka.ClusterAuthorizationFailed) {
		t.Errorf("error is %v", err)
	}
	h.wantTicks(e, 0)
}

// An end that gets no answer is retried, and either way there is one tick.
func TestExclusiveInDoubt(t *testing.T) {
	for lost := 1; lost <= 3; lost++ {
		t.Run(fmt.Sprint(lost, " answers lost"), func(t *testing.T) {
			h := newHostile(t, 1)
			e := h.exclusive()
			n := 0
			h.kafka.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				h.kafka.KeepControl()
				if n++; n <= lost {
					return nil, errors.New("closed"), true
				}
				return nil, nil, false
			})
			h.must(h.tick(e, 0))
			h.wantTicks(e, 1)
		})
	}
}

// A fence that Kafka tells of at any step is for good, and nothing is asked of
// Kafka after that.
func TestExclusiveIsSuperseded(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn} {
		t.Run(key.Name(), func(t *testing.T) {
			h := newHostile(t, 1)
			e := h.exclusive()
			fence := kerr.ProducerFenced
			if key == kmsg.Produce {
				fence = kerr.InvalidProducerEpoch
			}
			h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: fence})
			if err := h.tick(e, 0); !errors.Is(err, ErrSuperseded) || !errors.Is(err, ErrAborted) || errors.Is(err, ErrInDoubt) {
				t.Errorf("error is %v", err)
			}
			asked := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID, kmsg.EndTxn, kmsg.AddPartitionsToTxn}, Count: -1, Observe: true})
			if err := h.tick(e, 0); !errors.Is(err, ErrSuperseded) || asked.Hits() > 0 {
				t.Errorf("error is %v, and Kafka was asked %d times", err, asked.Hits())
			}
		})
	}
}

// The end gets no answer, and then another has the name: how this one ended is
// not known, and how the next ones do is.
func TestExclusiveIsSupersededInDoubt(t *testing.T) {
	h := newHostile(t, 1)
	e := h.exclusive()
	n := 0
	h.kafka.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.KeepControl()
		if n++; n == 1 {
			return nil, errors.New("closed"), true
		}
		return nil, nil, false
	})
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.ProducerFenced})
	if err := h.tick(e, 0); !errors.Is(err, ErrSuperseded) || !errors.Is(err, ErrInDoubt) {
		t.Errorf("error is %v", err)
	}
	if err := h.tick(e, 0); !errors.Is(err, ErrSuperseded) || errors.Is(err, ErrInDoubt) {
		t.Errorf("error is %v", err)
	}
}

// Another takes the name between the end of a failed transaction and the renewal:
// a server that does not refuse the old epoch still betrays it.
func TestRenewTellsOfATakeover(t *testing.T) {
	h := newHostile(t, 1)
	e := h.exclusive()
	e.p.tx.settled = true
	h.exclusive()
	if err := e.p.tx.renew(h.ctx()); !fenced(err) {
		t.Errorf("error is %v", err)
	}
}
