package rpc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The caller's oldest message gives way to a newer one, but not before it has had a second.
func TestTheOldestMessageGivesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &arrivals{within: 3 * time.Second, of: map[string]int{}}
		var cut atomic.Int32 // number of the message that was cut, from 1
		var held []*place
		for i := range ownPlaces {
			p, err := a.take(t.Context(), "slow", func() { cut.CompareAndSwap(0, int32(i+1)) })
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, p)
		}
		if p, err := a.take(t.Context(), "other", func() {}); err != nil {
			t.Fatal(err)
		} else {
			a.give(p)
		}
		began := time.Now()
		taken := make(chan error, 1)
		go func() {
			_, err := a.take(t.Context(), "slow", func() {})
			taken <- err
		}()
		time.Sleep(minAge - 1)
		synctest.Wait()
		if cut.Load() != 0 {
			t.Fatalf("message %d is cut too early", cut.Load())
		}
		time.Sleep(minAge / 4)
		synctest.Wait()
		if cut.Load() != 1 {
			t.Fatalf("message %d is cut first, not the oldest one", cut.Load())
		}
		a.give(held[0]) // its request has ended
		if err := <-taken; err != nil || time.Since(began) > 2*minAge {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestAMessageWithoutAPlaceIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &arrivals{within: minAge / 2, of: map[string]int{}}
		for i := range places {
			if _, err := a.take(t.Context(), string(rune('a'+i%4)), func() {}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.take(t.Context(), "z", func() {}); status.Code(err) != codes.Unavailable {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.take(ctx, "z", func() {}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
