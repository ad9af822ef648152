package gateway

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneOpensForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		opened, closed := 0, 0
		l := lazyValue[int]{
			open: func(ctx context.Context) (int, error) {
				opened++
				time.Sleep(time.Second) // virtual time
				return opened, ctx.Err()
			},
			close: func(_ context.Context, n int) error { closed += n; return nil },
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.get(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who does not wait gets %v", err)
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if n, err := l.get(t.Context()); n != 1 || err != nil {
					t.Errorf("%d, %v", n, err)
				}
			})
		}
		all.Wait()
		if err := l.closeValue(t.Context()); err != nil || closed != 1 || opened != 1 {
			t.Errorf("%v, opened %d, closed %d", err, opened, closed)
		}
		if _, err := l.get(t.Context()); !errors.Is(err, errClosing) {
			t.Errorf("after the end there is %v", err)
		}
	})
}

func TestWhatDidNotOpenIsOpenedAgain(t *testing.T) {
	t.Parallel()
	failure := errors.New("away")
	tries := 0
	l := lazyValue[int]{
		open:  func(context.Context) (int, error) { tries++; return tries, failure },
		close: func(context.Context, int) error { t.Error("what never opened was closed"); return nil },
	}
	for range 2 {
		if _, err := l.get(t.Context()); !errors.Is(err, failure) {
			t.Errorf("%v", err)
		}
	}
	if err := l.closeValue(t.Context()); err != nil || tries != 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

func TestTheEndInterruptsOpening(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	l := lazyValue[int]{open: func(ctx context.Context) (int, error) {
		close(begun)
		<-ctx.Done()
		return 0, ctx.Err()
	}}
	if err := (&lazyValue[int]{}).closeValue(t.Context()); err != nil {
		t.Errorf("what nobody asked for ends with %v", err)
	}
	var asking sync.WaitGroup
	asking.Go(func() { _, _ = l.get(t.Context()) })
	<-begun
	if err := l.closeValue(t.Context()); err != nil {
		t.Error(err)
	}
	asking.Wait()
}
