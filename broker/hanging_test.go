package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A failure is later than an earlier search, also if the clock was set back in between.
func TestHangingTransactionsAreLookedForAfterTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	b, c := openFake(t)
	x := &transaction{b: b, id: "t", checkedID: "t", checked: setBack(time.Now().Add(30*time.Minute), time.Hour)}
	if x.maybeHanging() {
		t.Error("no request has failed, and it looks for hanging transactions")
	}
	c.Close()
	if _, err := b.metadata(t.Context()); err == nil {
		t.Fatal("a server that is closed answers")
	}
	if !x.maybeHanging() {
		t.Error("it does not look for hanging transactions")
	}
}

// setBack returns a time that was read before the clock was set back. Its monotonic part is behind by as much.
func setBack(at time.Time, by time.Duration) time.Time {
	(*struct {
		wall      uint64
		monotonic time.Duration
		loc       *time.Location
	})(unsafe.Pointer(&at)).monotonic -= by
	return at
}

// A process that dies while it gives a hanging transaction its outcome leaves that outcome to the next process.
func TestAHangingTransactionKeepsItsOutcome(t *testing.T) {
	t.Parallel()
	for state, commit := range map[string]bool{"CompleteCommit": true, "CompleteAbort": false} {
		for cut, before := range map[string]cutPoint{"not at all": {}, "opened": {kmsg.AddOffsetsToTxn, 1}, "added": {kmsg.EndTxn, 1}, "ended": {kmsg.InitProducerID, 2}} {
			t.Run(state+" "+cut, func(t *testing.T) {
				t.Parallel()
				b, k := openFake(t)
				died, die := context.WithCancel(t.Context())
				kept := keepStates(k, state, before, die)
				open := func(ctx context.Context) error {
					return (&transaction{b: b, id: "t", group: "g", ident: noIdentity}).open(ctx)
				}
				err := open(died)
				if died.Err() != nil {
					err = open(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				kept.mu.Lock()
				defer kept.mu.Unlock()
				if len(kept.ends) == 0 || slices.Contains(kept.ends, !commit) || kept.state.State != "Empty" || outcomeIn(kept.state.TimeoutMillis) != outcomeUnknown {
					t.Errorf("commits: %v; the id is now %s with the timeout %d", kept.ends, kept.state.State, kept.state.TimeoutMillis)
				}
			})
		}
	}
}

// A Kafka that does not allow a transaction of a minute keeps the outcome for the usual time.
func TestAHangingTransactionOnAKafkaWithShortTransactions(t *testing.T) {
	t.Parallel()
	b, k := openFake(t, kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "30000"}))
	b.transactionTimeout = defaultTransaction
	kept := keepStates(k, "CompleteCommit", cutPoint{}, nil)
	if err := (&transaction{b: b, id: "t", group: "g", ident: noIdentity}).open(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if !slices.Equal(kept.ends, []bool{true}) || kept.state.State != "Empty" || outcomeIn(kept.state.TimeoutMillis) != outcomeUnknown {
		t.Errorf("commits: %v; the id is now %s with the timeout %d", kept.ends, kept.state.State, kept.state.TimeoutMillis)
	}
}

// cutPoint is the request before which a process dies.
type cutPoint struct {
	key kmsg.Key
	nth int
}

// coordinatorStates are the states of a transactional id, which a fake Kafka does not have.
type coordinatorStates struct {
	mu    sync.Mutex
	state kmsg.DescribeTransactionsResponseTransactionState
	ends  []bool // whether each end was a commit
}

func keepStates(k *kfake.Cluster, state string, cut cutPoint, die func()) *coordinatorStates {
	c := &coordinatorStates{}
	c.state.State, c.state.TransactionalID = state, "t"
	seen := 0
	control := func(key kmsg.Key, do func(kmsg.Request) kmsg.Response) {
		k.ControlKey(key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
			k.KeepControl()
			c.mu.Lock()
			defer c.mu.Unlock()
			if key == cut.key {
				if seen++; seen == cut.nth {
					die()
					return nil, errors.New("the process is dead"), true
				}
			}
			answer := do(r)
			return answer, nil, answer != nil
		})
	}
	control(kmsg.DescribeTransactions, func(r kmsg.Request) kmsg.Response {
		answer := r.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		answer.TransactionStates = append(answer.TransactionStates, c.state)
		return answer
	})
	control(kmsg.InitProducerID, func(r kmsg.Request) kmsg.Response {
		if c.state.State == "Ongoing" {
			c.ends = append(c.ends, false)
		}
		c.state.State, c.state.TimeoutMillis = "Empty", r.(*kmsg.InitProducerIDRequest).TransactionTimeoutMillis
		return nil
	})
	control(kmsg.AddOffsetsToTxn, func(r kmsg.Request) kmsg.Response {
		q := r.(*kmsg.AddOffsetsToTxnRequest)
		c.state.State, c.state.ProducerID, c.state.ProducerEpoch = "Ongoing", q.ProducerID, q.ProducerEpoch
		return nil
	})
	control(kmsg.EndTxn, func(r kmsg.Request) kmsg.Response {
		c.state.State = "CompleteAbort"
		if r.(*kmsg.EndTxnRequest).Commit {
			c.state.State = "CompleteCommit"
		}
		c.ends = append(c.ends, r.(*kmsg.EndTxnRequest).Commit)
		return nil
	})
	return c
}
