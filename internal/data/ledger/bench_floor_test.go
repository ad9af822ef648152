package ledger_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// floor measures the parts of a refill that cannot be avoided: reading the facts, and
// writing the final content of Redis.
func (w *world) floor(b *testing.B, facts int) {
	measure := func(what string, do func()) {
		began, spent := time.Now(), cpu(b)
		do()
		b.Logf("%s: %s, %.2f µs of CPU a fact", what, time.Since(began).Round(time.Millisecond), float64((cpu(b)-spent).Nanoseconds())/1000/float64(facts))
	}
	hashes := map[string]map[string]string{}
	patient := *w.redis.Options()
	patient.ReadTimeout, patient.WriteTimeout = time.Minute, time.Minute
	held := redis.NewClient(&patient)
	defer held.Close()
	for _, name := range []string{"makings", "models", "versions", "judgements", "runs", "links"} {
		all, err := held.HGetAll(b.Context(), w.prefix()+name).Result()
		must(b, err)
		hashes[name] = all
	}
	measure("only reading the facts", func() { w.readAll(b) })
	measure("only writing what Redis then holds", func() { writeAll(b, held, hashes) })
}

func (w *world) readAll(b *testing.B) {
	c, err := w.broker.Consumer(b.Context(), broker.ConsumerOptions{Streams: []string{tidemill.StreamFacts}, Start: broker.Earliest()})
	must(b, err)
	ends, err := w.broker.Ends(b.Context(), tidemill.StreamFacts)
	must(b, err)
	left := map[int32]int64{}
	for _, end := range ends {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
		}
	}
	for len(left) > 0 {
		d, err := c.Poll(b.Context())
		must(b, err)
		if d.Next() >= left[d.Partition] {
			delete(left, d.Partition)
		}
		d.Done()
	}
	must(b, c.Close(context.WithoutCancel(b.Context())))
}

// writeAll writes in portions as large as those of the scripts, and deletes them again.
func writeAll(b *testing.B, to *redis.Client, hashes map[string]map[string]string) {
	for name, all := range hashes {
		var row []any
		write := func() {
			if len(row) > 0 {
				must(b, to.HSet(b.Context(), "floor:"+name, row...).Err())
			}
			row = row[:0]
		}
		for field, value := range all {
			if row = append(row, field, value); len(row) >= 2000 {
				write()
			}
		}
		write()
		must(b, to.Del(b.Context(), "floor:"+name).Err())
	}
}

// cpu returns the processor time that the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
