package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// Trigger is the state of one trigger, at one dispatcher or summed over all. The counts begin when
// a dispatcher starts.
type Trigger struct {
	Name         string    `json:"name"`
	Delivered    uint64    `json:"delivered"`
	Failed       uint64    `json:"failed"` // failed attempts
	DeadLettered uint64    `json:"deadLettered"`
	Replies      uint64    `json:"replies"`
	Ignored      uint64    `json:"ignored,omitempty"` // answers with events that were ignored by default
	InFlight     int64     `json:"inFlight"`
	Parked       int64     `json:"parked"`
	OldestParked time.Time `json:"oldestParked,omitzero"`
	Starting     bool      `json:"starting,omitempty"` // true until the dispatcher has all of the trigger's partitions
	Waits        string    `json:"waits,omitempty"`    // reason why the trigger's events wait for its subscriber
	LastError    string    `json:"lastError,omitempty"`
	LastErrorAt  time.Time `json:"lastErrorAt,omitzero"`
}

// Board stores the states that dispatchers publish.
type Board struct{ redisSet }

// NewBoard returns the board of an install on one Kafka; nil without Redis.
func NewBoard(client *redis.Client, names tidemill.Names, kafka string) *Board {
	if client == nil {
		return nil
	}
	return &Board{redisSet{client: client, index: names.Key("triggers", layout, kafka, "{standing}"), what: "the triggers"}}
}

// Publish writes the state of a dispatcher's triggers every two seconds until the context ends, and
// then removes the state. If Redis is down, Publish tries again; Read fails in that time, so no
// wrong sum is shown.
func (b *Board) Publish(ctx context.Context, dispatcher string, now func() []Trigger) {
	if b != nil {
		b.publish(ctx, dispatcher, func() any { return now() })
	}
}

// Write writes the state once.
func (b *Board) Write(ctx context.Context, dispatcher string, now []Trigger) error {
	return b.write(ctx, dispatcher, now)
}

// Whole is the state of all triggers.
type Whole struct {
	Dispatchers int // number of dispatchers that have written lately
	Triggers    map[string]Trigger
}

// ErrNoRedis is returned without Redis, because then no state is known.
var ErrNoRedis = errors.New("there is no Redis to read it from")

// Read returns the sum of the dispatchers' states.
func (b *Board) Read(ctx context.Context) (Whole, error) {
	if b == nil {
		return Whole{}, ErrNoRedis
	}
	var parts [][]Trigger
	err := b.readEntries(ctx, func(text []byte) error {
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
	return sumParts(parts), nil
}

// sumParts adds up parts. The sum has the oldest parked event and the newest error. A trigger is
// starting if it is starting in one part.
func sumParts(parts [][]Trigger) Whole {
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
	to.Ignored += t.Ignored
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

// Process is the state of a process that scores.
type Process struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	Began   time.Time `json:"began"`
	Cache   Cache     `json:"cache"`
	Scorers []Scorer  `json:"scorers"`
}

// Cache is the state of a process's cache of models, for all of its scorers. The counts begin when
// the process starts.
type Cache struct {
	Models  int    `json:"models"`
	Bytes   int64  `json:"bytes"`
	Budget  int64  `json:"budget"`
	Hits    uint64 `json:"hits"`
	Misses  uint64 `json:"misses"`
	Evicted uint64 `json:"evicted"`
}

// Scorer is the state of one scorer, at one process or summed over all. The counts begin when a
// process starts.
type Scorer struct {
	Name         string        `json:"name"`
	Events       uint64        `json:"events"` // events read
	Scored       uint64        `json:"scored"`
	Passed       uint64        `json:"passed"`
	Dropped      uint64        `json:"dropped"`
	DeadLettered uint64        `json:"deadLettered"`
	Held         int64         `json:"held"`
	Skipped      uint64        `json:"skipped"`
	Aborted      uint64        `json:"aborted"`
	Rate         float64       `json:"rate"`
	Lag          int64         `json:"lag"`
	P50          time.Duration `json:"p50"`
	P99          time.Duration `json:"p99"`
	Models       int           `json:"models"`
	Swaps        []Swap        `json:"swaps,omitempty"`
	LastError    string        `json:"lastError,omitempty"`
	LastErrorAt  time.Time     `json:"lastErrorAt,omitzero"`
}

// Swap is the first event that a version has scored in a partition.
type Swap struct {
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Before    int       `json:"before"`
	Version   int       `json:"version"`
	Stream    string    `json:"stream"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
}

// Scorers stores the states that scoring processes publish.
type Scorers struct{ redisSet }

// NewScorers returns the Scorers of an install on one Kafka; nil without Redis.
func NewScorers(client *redis.Client, names tidemill.Names, kafka string) *Scorers {
	if client == nil {
		return nil
	}
	return &Scorers{redisSet{client: client, index: names.Key("scorers", layout, kafka, "{standing}"), what: "the scorers"}}
}

// Publish writes the state of a process every two seconds until the context ends, and then removes
// it.
func (s *Scorers) Publish(ctx context.Context, process string, now func() Process) {
	if s != nil {
		s.publish(ctx, process, func() any { return now() })
	}
}

// Read returns the states that the processes have written lately, sorted by host and id.
func (s *Scorers) Read(ctx context.Context) (all []Process, err error) {
	if s == nil {
		return nil, ErrNoRedis
	}
	err = s.readEntries(ctx, func(text []byte) error {
		var p Process
		err := json.Unmarshal(text, &p)
		if err == nil {
			all = append(all, p)
		}
		return err
	})
	slices.SortFunc(all, func(a, b Process) int { return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.ID, b.ID)) })
	return all, err
}

// Of returns the sum of a scorer's states, and the number of processes. Latencies cannot be added,
// so each latency is the highest of the processes: at least half of all events are no slower than
// the highest median. The error is the newest one.
func Of(all []Process, scorer string) (whole Scorer, processes int) {
	whole.Name = scorer
	for _, p := range all {
		for i := range p.Scorers {
			if p.Scorers[i].Name == scorer {
				whole.add(&p.Scorers[i])
				processes++
			}
		}
	}
	slices.SortStableFunc(whole.Swaps, func(a, b Swap) int { return b.At.Compare(a.At) })
	return whole, processes
}

func (s *Scorer) add(o *Scorer) {
	s.Events += o.Events
	s.Scored += o.Scored
	s.Passed += o.Passed
	s.Dropped += o.Dropped
	s.DeadLettered += o.DeadLettered
	s.Held += o.Held
	s.Skipped += o.Skipped
	s.Aborted += o.Aborted
	s.Rate += o.Rate
	s.Lag += o.Lag
	s.P50, s.P99 = max(s.P50, o.P50), max(s.P99, o.P99)
	s.Models += o.Models
	s.Swaps = append(s.Swaps, o.Swaps...)
	if o.LastError != "" && !o.LastErrorAt.Before(s.LastErrorAt) {
		s.LastError, s.LastErrorAt = o.LastError, o.LastErrorAt
	}
}

const (
	layout = "1" // version of the entries in Redis
	every  = 2 * time.Second
	lives  = 10 * time.Second // validity of an entry without renewal
)

// redisSet is a set of entries in Redis. Each process has one entry.
type redisSet struct {
	client *redis.Client
	index  string // key of the set of the processes' ids
	what   string // subject of the states, for error messages
}

func (p *redisSet) publish(ctx context.Context, who string, now func() any) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		_ = p.write(ctx, who, now()) // the next tick writes it again
		select {
		case <-t.C:
		case <-ctx.Done():
			gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = p.remove(gone, []string{who}) // if this fails, the entry expires
			return
		}
	}
}

func (p *redisSet) write(ctx context.Context, who string, now any) error {
	text, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", p.what, err)
	}
	_, err = p.client.TxPipelined(ctx, func(r redis.Pipeliner) error {
		r.Set(ctx, p.part(who), text, lives)
		r.SAdd(ctx, p.index, who)
		r.Expire(ctx, p.index, lives)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", p.what, err)
	}
	return nil
}

func (p *redisSet) part(who string) string { return p.index + ":" + who }

func (p *redisSet) remove(ctx context.Context, all []string) error {
	_, err := p.client.TxPipelined(ctx, func(r redis.Pipeliner) error {
		for _, who := range all {
			r.SRem(ctx, p.index, who)
			r.Del(ctx, p.part(who))
		}
		return nil
	})
	return err
}

// readEntries calls the function take for each entry, and removes expired and unreadable entries
// from the index.
func (p *redisSet) readEntries(ctx context.Context, take func(text []byte) error) error {
	gone, err := p.parts(ctx, take)
	if err == nil && len(gone) > 0 {
		err = p.remove(ctx, gone)
	}
	if err != nil {
		return fmt.Errorf("read the status of %s: %w", p.what, err)
	}
	return nil
}

func (p *redisSet) parts(ctx context.Context, take func(text []byte) error) (gone []string, err error) {
	all, err := p.client.SMembers(ctx, p.index).Result()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	keys := make([]string, len(all))
	for i, who := range all {
		keys[i] = p.part(who)
	}
	texts, err := p.client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	for i, text := range texts {
		if written, there := text.(string); !there || take([]byte(written)) != nil {
			gone = append(gone, all[i])
		}
	}
	return gone, nil
}
