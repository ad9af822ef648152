package trials

import (
	"context"
	"runtime"
	"slices"
	"time"

	"tidemill.dev/broker/retry"
)

// pace keeps the trials of a scorer quiet: the scorer may run in this process, and its events come first. All work of
// trials is one goroutine, which lets others run after each slice. While the stream of answers grows, it
// also sleeps, so that it keeps to its share of one core. The time of a slice includes the time in which other work had the
// core, so the trials become slower on a busy machine. While the stream is quiet there is no limit.
type pace struct {
	share float64
	ends  []int64   // ends of the stream of answers
	grew  time.Time // time at which the stream was last seen to grow
	since time.Time // beginning of the slice
}

// slice is the time after which other goroutines may run. An event of the scorer may have to wait for that long.
const slice = 250 * time.Microsecond

func (p *pace) begin() { p.since = time.Now() }

// quiet is the time without new answers after which the scorer counts as idle.
const quiet = time.Second

// heads gets the present ends of the stream of answers.
func (p *pace) heads(ends []int64) {
	if !slices.Equal(p.ends, ends) {
		p.ends, p.grew = ends, time.Now()
	}
}

// rest ends a slice that has lasted long enough. It is called after each event.
func (p *pace) rest(ctx context.Context) error {
	worked := time.Since(p.since)
	if worked < slice {
		return nil
	}
	defer p.begin()
	if p.share < 1 && time.Since(p.grew) < quiet {
		return retry.Sleep(ctx, time.Duration(float64(worked)*(1/p.share-1)))
	}
	runtime.Gosched()
	return context.Cause(ctx)
}
