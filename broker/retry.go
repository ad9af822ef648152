package broker

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
)

// backoff waits between attempts: 20 ms, doubling to 500 ms, with jitter so
// that many clients of one restarted server do not return together.
type backoff struct{ n int }

func (w *backoff) next() time.Duration {
	d := min(20*time.Millisecond<<min(w.n, 10), 500*time.Millisecond)
	w.n++
	return d/2 + rand.N(d/2)
}

func (w *backoff) wait(ctx context.Context) error {
	return sleep(ctx, w.next())
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// persist calls do until it succeeds, fails for good, or the context ends.
func persist[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	var w backoff
	for {
		v, err := do(ctx)
		if err == nil || !passing(err) {
			return v, err
		}
		if ended := w.wait(ctx); ended != nil {
			return v, errors.Join(err, ended)
		}
	}
}

// graver is the one of two errors to act on: rather one that will not pass.
func graver(a, b error) error {
	if a == nil || b != nil && passing(a) && !passing(b) {
		return b
	}
	return a
}

// passing tells whether an error may go away by itself: the server is
// restarting, a leader is being elected, a coordinator is moving. What is not
// in here will fail again however often it is tried.
func passing(err error) bool {
	var code kafka.Error
	if errors.As(err, &code) {
		return passingCode(code)
	}
	var network net.Error
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	case errors.As(err, &network):
		return true
	}
	return false
}

func passingCode(code kafka.Error) bool {
	switch code {
	case kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.NotController, kafka.RequestTimedOut,
		kafka.BrokerNotAvailable, kafka.ReplicaNotAvailable, kafka.NetworkException,
		kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup,
		kafka.NotEnoughReplicas, kafka.NotEnoughReplicasAfterAppend, kafka.KafkaStorageError,
		kafka.ConcurrentTransactions, kafka.UnknownTopicOrPartition, kafka.FencedLeaderEpoch,
		kafka.UnknownLeaderEpoch, kafka.OffsetNotAvailable, kafka.PreferredLeaderNotAvailable,
		kafka.EligibleLeadersNotAvailable, kafka.InvalidMessage, unstableOffsetCommit:
		return true
	}
	return false
}

// unstableOffsetCommit is missing from kafka-go's list: an open transaction
// may still move the offset that was asked for.
const unstableOffsetCommit kafka.Error = 88
