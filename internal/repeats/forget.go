package repeats

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// longest is how long an event may be remembered, by any config.
const longest = 24 * time.Hour

// keyOf is where a stream's marks lie in Redis. It names the Kafka, lest two
// installs of one name that share a Redis take each other's events for repeats.
func keyOf(names tidemill.Names, kafka, stream string) string {
	return names.Key("repeats", layout, kafka, "{"+stream+"}")
}

// Forget has all gateways forget what was marked on a stream up to now. It is
// for one that has just been made: marks of an earlier stream of its name, or
// from beside another Kafka, are of events that it does not hold. Gateways read
// of it as they read of each other's marks, and each says it on with its own,
// so that it is heard however much is written, and trimmed, behind it.
func Forget(ctx context.Context, client *redis.Client, names tidemill.Names, kafka, stream string) error {
	key := keyOf(names, kafka, stream)
	_, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Unlink(ctx, key)
		p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{fieldForget, time.Now().UnixMilli()}})
		p.PExpire(ctx, key, longest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget the repeats of stream %s: %w", stream, err)
	}
	return nil
}

// Forget drops what this gateway knows of a stream that has just been made,
// whether or not Redis is there.
func (m *Memory) Forget(stream string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shelf(stream)
	s.known = known{forgotten: time.Now().UnixMilli()}
	s.marks.waiting = nil
}

// forgets reads what an entry says of forgetting.
func forgets(entry *redis.XMessage) (upTo int64) {
	text, _ := entry.Values[fieldForget].(string)
	upTo, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return upTo
}
