package embedded

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func TestKeysExpire(t *testing.T) {
	s := start(t, Options{})
	r := redis.NewClient(&redis.Options{Addr: s.Redis()})
	defer r.Close()
	must(t, r.Set(t.Context(), "long", 1, time.Hour).Err())
	began := time.Now()
	must(t, r.Set(t.Context(), "short", 1, 300*time.Millisecond).Err())
	waitEffect(t, "the key has expired", func() bool { return r.Exists(t.Context(), "short").Val() == 0 })
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("300 ms took %v", took)
	}
	if left := r.TTL(t.Context(), "long").Val(); left < 59*time.Minute || left > time.Hour {
		t.Errorf("an hour's key has %v left", left)
	}
}

func TestNextTick(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0:                     tick,
		time.Millisecond:      tick,
		20 * time.Millisecond: time.Second,
	} {
		if got := nextTick(cost); got != want {
			t.Errorf("after %v: %v, want %v", cost, got, want)
		}
	}
}

// A late tick does not expire a recently set key.
func TestALateTick(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{90 * time.Millisecond: 90 * time.Millisecond, tick: tick, time.Minute: tick} {
		if got := ageTime(since, tick); got != want {
			t.Errorf("after %v keys age by %v, want %v", since, got, want)
		}
	}
}

// The answers to a pipeline come in few writes, and each of them comes.
func TestAnswersOfAPipelineAreJoined(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	c := redis.NewClient(&redis.Options{Addr: l.Addr().String(), PoolSize: 1})
	defer c.Close()
	writes := &writeCounter{}
	go func() {
		writes.Conn, _ = l.Accept() // an error makes the ping below fail
		miniredis.RunT(t).Server().ServeConn(&answerJoiner{Conn: writes})
	}()
	must(t, c.Ping(t.Context()).Err())
	before := writes.n.Load()
	p := c.TxPipeline()
	for i := range 100 {
		p.Incr(t.Context(), "n")
		p.Get(t.Context(), "n")
		if i == 50 {
			p.Get(t.Context(), "missing")
		}
	}
	all, err := p.Exec(t.Context())
	if err != redis.Nil || len(all) != 201 || all[200].(*redis.StringCmd).Val() != "100" {
		t.Fatalf("%d answers, %v: %v", len(all), err, all[len(all)-1])
	}
	if n := writes.n.Load() - before; n > 20 {
		t.Errorf("%d writes for 203 answers", n)
	}
}

type writeCounter struct {
	net.Conn
	n atomic.Int64
}

func (c *writeCounter) Write(p []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(p)
}
