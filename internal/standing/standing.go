// Package standing is how dispatchers tell gateways how the triggers stand: each
// writes its own part to Redis every few seconds, and a gateway adds the parts
// up. Where Redis is away nothing is known, which is never taken for nothing
// being there.
package standing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	LastError    string    `json:"lastError,omitempty"`
	LastErrorAt  time.Time `json:"lastErrorAt,omitzero"`
}

const (
	layout = "1" // of what is written
	every  = 2 * time.Second
	lives  = 10 * time.Second // what a dispatcher wrote that writes no more
)

// Board is the place in Redis.
type Board struct {
	client *redis.Client
	index  string // the key of the set of those who write
}

// NewBoard is the board of an install beside one Kafka; nil without Redis.
func NewBoard(client *redis.Client, names tidemill.Names, kafka string) *Board {
	if client == nil {
		return nil
	}
	return &Board{client: client, index: names.Key("triggers", layout, kafka, "{standing}")}
}

// Publish writes how a dispatcher's triggers stand, again and again until the
// context ends, and takes it away then. Where Redis is away it tries again: the
// part that is missing meanwhile makes the whole unknown and not wrong.
func (b *Board) Publish(ctx context.Context, dispatcher string, now func() []Trigger) {
	if b == nil {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		_ = b.Write(ctx, dispatcher, now()) // it is written anew in a moment
		select {
		case <-t.C:
		case <-ctx.Done():
			gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = b.remove(gone, []string{dispatcher}) // or it fades by itself
			return
		}
	}
}

// Write writes it once.
func (b *Board) Write(ctx context.Context, dispatcher string, now []Trigger) error {
	text, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("write how the triggers stand: %w", err)
	}
	_, err = b.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, b.part(dispatcher), text, lives)
		p.SAdd(ctx, b.index, dispatcher)
		p.Expire(ctx, b.index, lives)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write how the triggers stand: %w", err)
	}
	return nil
}

func (b *Board) part(dispatcher string) string { return b.index + ":" + dispatcher }

func (b *Board) remove(ctx context.Context, dispatchers []string) error {
	_, err := b.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, d := range dispatchers {
			p.SRem(ctx, b.index, d)
			p.Del(ctx, b.part(d))
		}
		return nil
	})
	return err
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
	parts, err := b.parts(ctx)
	if err != nil {
		return Whole{}, fmt.Errorf("read how the triggers stand: %w", err)
	}
	return sum(parts), nil
}

func (b *Board) parts(ctx context.Context) (all [][]Trigger, err error) {
	dispatchers, err := b.client.SMembers(ctx, b.index).Result()
	if err != nil || len(dispatchers) == 0 {
		return nil, err
	}
	keys := make([]string, len(dispatchers))
	for i, d := range dispatchers {
		keys[i] = b.part(d)
	}
	texts, err := b.client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	var gone []string
	for i, text := range texts {
		written, there := text.(string)
		var part []Trigger
		if !there || json.Unmarshal([]byte(written), &part) != nil {
			gone = append(gone, dispatchers[i])
			continue
		}
		all = append(all, part)
	}
	if len(gone) > 0 {
		err = b.remove(ctx, gone)
	}
	return all, err
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
	if !t.OldestParked.IsZero() && (to.OldestParked.IsZero() || t.OldestParked.Before(to.OldestParked)) {
		to.OldestParked = t.OldestParked
	}
	if t.LastError != "" && !t.LastErrorAt.Before(to.LastErrorAt) {
		to.LastError, to.LastErrorAt = t.LastError, t.LastErrorAt
	}
	return to
}
