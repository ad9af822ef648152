// Package standing is how dispatchers tell gateways how the triggers stand, and
// those who score how the scorers do: each writes its own part to Redis every few
// seconds, and a gateway adds the parts up. Where Redis is away nothing is known,
// which is never taken for nothing being there.
package standing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// Trigger is how one trigger stands, at one dispatcher or at all together. The
// counts begin when a dispatcher starts.
type Trigger struct {
	Name         string    `json:"name"`
	Delivered    uint64    `json:"delivered"`
	Failed       uint64    `json:"failed"` // attempts
	DeadLettered uint64    `json:"deadLettered"`
	Replies      uint64    `json:"replies"`
	InFlight     int64     `json:"inFlight"`
	Parked       int64     `json:"parked"`
	OldestParked time.Time `json:"oldestParked,omitzero"`
	Starting     bool      `json:"starting,omitempty"` // it does not have all of its partitions yet
	Waits        string    `json:"waits,omitempty"`    // why its events wait for its subscriber
	LastError    string    `json:"lastError,omitempty"`
	LastErrorAt  time.Time `json:"lastErrorAt,omitzero"`
}

// Board is where dispatchers write.
type Board struct{ place }

// NewBoard is the board of an install beside one Kafka; nil without Redis.
func NewBoard(client *redis.Client, names tidemill.Names, kafka string) *Board {
	if client == nil {
		return nil
	}
	return &Board{place{client: client, index: names.Key("triggers", layout, kafka, "{standing}"), what: "the triggers"}}
}

// Publish writes how a dispatcher's triggers stand, again and again until the
// context ends, and takes it away then. Where Redis is away it tries again: the
// part that is missing meanwhile makes the whole unknown and not wrong.
func (b *Board) Publish(ctx context.Context, dispatcher string, now func() []Trigger) {
	if b != nil {
		b.publish(ctx, dispatcher, func() any { return now() })
	}
}

// Write writes it once.
func (b *Board) Write(ctx context.Context, dispatcher string, now []Trigger) error {
	return b.write(ctx, dispatcher, now)
}

// Whole is how all triggers stand.
type Whole struct {
	Dispatchers int // that have written lately
	Triggers    map[string]Trigger
}

// ErrNoRedis: there is no Redis, so nothing is known.
var ErrNoRedis = errors.New("there is no Redis to read it from")

// Read adds up what the dispatchers have written.
func (b *Board) Read(ctx context.Context) (Whole, error) {
	if b == nil {
		return Whole{}, ErrNoRedis
	}
	var parts [][]Trigger
	err := b.read(ctx, func(text []byte) error {
		var part []Trigger
		err := json.Unmarshal(text, &part)
		if err == nil {
			parts = append(parts, part)
		}
		return err
	})
	if err != nil {
		return Whole{}, err
	}
	return sum(parts), nil
}

// sum adds parts up. Of what cannot be added, the oldest parked event, the
// newest error and the slowest start count.
func sum(parts [][]Trigger) Whole {
	w := Whole{Dispatchers: len(parts), Triggers: map[string]Trigger{}}
	for _, part := range parts {
		for _, t := range part {
			w.Triggers[t.Name] = add(w.Triggers[t.Name], t)
		}
	}
	return w
}

func add(to, t Trigger) Trigger {
	to.Name = t.Name
	to.Delivered += t.Delivered
	to.Failed += t.Failed
	to.DeadLettered += t.DeadLettered
	to.Replies += t.Replies
	to.InFlight += t.InFlight
	to.Parked += t.Parked
	to.Starting = to.Starting || t.Starting
	to.Waits = cmp.Or(to.Waits, t.Waits)
	if !t.OldestParked.IsZero() && (to.OldestParked.IsZero() || t.OldestParked.Before(to.OldestParked)) {
		to.OldestParked = t.OldestParked
	}
	if t.LastError != "" && !t.LastErrorAt.Before(to.LastErrorAt) {
		to.LastError, to.LastErrorAt = t.LastError, t.LastErrorAt
	}
	return to
}
