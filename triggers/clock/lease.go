package clock

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/redis/go-redis/v9"
)

// lease says in Redis which keeper is active, so that the others need not try.
// It decides nothing: without it, or with two who believe that they have it,
// Kafka lets one commit. A nil lease is had by everybody.
type lease struct {
	redis  *redis.Client
	key    string
	holder string
	ttl    time.Duration
}

func newLease(o *Options) *lease {
	if o.Redis == nil {
		return nil
	}
	return &lease{redis: o.Redis, key: o.Names.Key(reader, o.Kafka), holder: rand.Text(), ttl: o.Lease}
}

const (
	takeLease = `local holder = redis.call("GET", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1`
	dropLease = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0`
)

// take takes the lease or keeps it, and tells whether it is ours then. An error
// says that nobody knows.
func (l *lease) take(ctx context.Context) (ours bool, err error) {
	if l == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl/4)
	defer cancel()
	return l.redis.Eval(ctx, takeLease, []string{l.key}, l.holder, l.ttl.Milliseconds()).Bool()
}

// drop gives the lease up, so that another keeper need not wait for its end.
func (l *lease) drop(ctx context.Context) error {
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl/4)
	defer cancel()
	return l.redis.Eval(ctx, dropLease, []string{l.key}, l.holder).Err()
}
