// Package clock gives each process of a world its wall clock. Package overlay compiles
// Tidemill so that it asks this package for the time; all else in the world has the bubble's clock.
//
// The goroutines that a process starts inherit its label of package pprof, which finds its clock. A
// jump moves only the wall clock. The monotonic clock goes on, as it does on a real machine, so
// timers and durations do not change.
package clock

import (
	"context"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Clock is how far the clock of a process is ahead of the bubble's.
type Clock struct{ ahead atomic.Int64 }

var (
	clocks sync.Map // *Clock of each process, by the pointer to its labels
	asked  atomic.Bool
)

// Enter gives the goroutine, and all that it will start, a clock.
func Enter(process string) *Clock {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("process", process)))
	c := &Clock{}
	clocks.Store(labels(), c)
	return c
}

// Set lets the clock jump until it is so far ahead.
func (c *Clock) Set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// IsUsed reports whether anything has asked for the time, which it does only if it is compiled with
// the overlay.
func IsUsed() bool { return asked.Load() }

// Now is time.Now by the clock of the process.
func Now() time.Time {
	asked.Store(true)
	t := time.Now()
	if c, ok := clocks.Load(labels()); ok {
		t = t.Add(time.Duration(c.(*Clock).ahead.Load()))
	}
	return withMonotonic(t)
}

// Since is time.Since by the clock of the process.
func Since(t time.Time) time.Duration { return Now().Sub(t) }

// Until is time.Until by the clock of the process.
func Until(t time.Time) time.Duration { return t.Sub(Now()) }

// AfterFunc is time.AfterFunc. The function has the clock of the caller, not that of the goroutine
// which happens to start it.
func AfterFunc(d time.Duration, f func()) *time.Timer {
	l := labels()
	return time.AfterFunc(d, func() {
		setLabels(l)
		f()
	})
}

// WithDeadline is context.WithDeadline by the clock of the process.
func WithDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, Until(at))
}

// reading is a time.Time with a monotonic clock: the seconds since 1885 with the nanoseconds, and the
// monotonic time.
type reading struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

const (
	hasMonotonic = 1 << 63
	nanoBits     = 30
)

var (
	from1885 = time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	zero     = reading{wall: hasMonotonic}
)

// withMonotonic returns a time with the present monotonic time, which a bubble's clock lacks.
func withMonotonic(t time.Time) time.Time {
	r := (*reading)(unsafe.Pointer(&t))
	now := time.Since(*(*time.Time)(unsafe.Pointer(&zero)))
	*r = reading{hasMonotonic | uint64(t.Unix()-from1885)<<nanoBits | uint64(t.Nanosecond()), int64(now), r.loc}
	return t
}

//go:linkname labels runtime/pprof.runtime_getProfLabel
func labels() unsafe.Pointer

//go:linkname setLabels runtime/pprof.runtime_setProfLabel
func setLabels(unsafe.Pointer)
