package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestBudgetLetsInInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{left: 10}
		ctx := t.Context()
		mustTake(t, b, ctx, 10)
		in := make(chan int, 3)
		for i := range 3 {
			go func() {
				mustTake(t, b, ctx, 10)
				in <- i
			}()
			synctest.Wait()
		}
		for want := range 3 {
			b.give(10, 1)
			synctest.Wait()
			if got := <-in; got != want || len(in) > 0 {
				t.Fatalf("in came %d and %d more, it was %d's turn", got, len(in), want)
			}
		}
	})
}

func TestBudgetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{left: 1}
		mustTake(t, b, t.Context(), 5) // larger than all: passes when anything is left
		ctx, cancel := context.WithCancelCause(t.Context())
		closed, shut := context.WithCancelCause(t.Context())
		outcome := make(chan error, 2)
		go func() { outcome <- b.take(ctx, closed, 1) }()
		synctest.Wait()
		go func() { outcome <- b.take(t.Context(), closed, 1) }()
		synctest.Wait()
		why := errors.New("no time left")
		cancel(why)
		if err := <-outcome; !errors.Is(err, why) {
			t.Errorf("the context's end gives %v", err)
		}
		shut(ErrClosed)
		if err := <-outcome; !errors.Is(err, ErrClosed) {
			t.Errorf("the producer's end gives %v", err)
		}
		b.give(5, 1)
		if b.left != 1 || len(b.waiting) != 0 {
			t.Errorf("left %d, %d waiting: who gave up took something with them", b.left, len(b.waiting))
		}
	})
}

func TestBudgetWaitsForNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget{left: 10}
		for range 3 {
			mustTake(t, &b, t.Context(), 1)
		}
		idle := make(chan error, 1)
		go func() { idle <- b.wait(t.Context()) }()
		synctest.Wait()
		b.give(2, 2)
		synctest.Wait()
		select {
		case <-idle:
			t.Fatal("one is pending, and wait has returned")
		default:
		}
		b.give(1, 1)
		if err := <-idle; err != nil {
			t.Fatal(err)
		}
		b.close()
		if err := b.take(t.Context(), t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("closed, take gives %v", err)
		}
	})
}

func mustTake(t *testing.T, b *budget, ctx context.Context, n int64) {
	t.Helper()
	if err := b.take(ctx, context.Background(), n); err != nil {
		t.Error(err)
	}
}
