package standing

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// Process is how one that scores stands.
type Process struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	Began   time.Time `json:"began"`
	Cache   Cache     `json:"cache"`
	Scorers []Scorer  `json:"scorers"`
}

// Cache is what a process holds of models, for all of its scorers. The counts
// begin when it starts.
type Cache struct {
	Models  int    `json:"models"`
	Bytes   int64  `json:"bytes"`
	Budget  int64  `json:"budget"`
	Hits    uint64 `json:"hits"`
	Misses  uint64 `json:"misses"`
	Evicted uint64 `json:"evicted"`
}

// Scorer is how one scorer stands at one process, or at all together. The counts
// begin when a process starts.
type Scorer struct {
	Name         string        `json:"name"`
	Events       uint64        `json:"events"` // read
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

// Swap is the first event of a partition that a version has scored.
type Swap struct {
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Before    int       `json:"before"`
	Version   int       `json:"version"`
	Stream    string    `json:"stream"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
}

// Scorers is where those who score write.
type Scorers struct{ place }

// NewScorers is that of an install beside one Kafka; nil without Redis.
func NewScorers(client *redis.Client, names tidemill.Names, kafka string) *Scorers {
	if client == nil {
		return nil
	}
	return &Scorers{place{client: client, index: names.Key("scorers", layout, kafka, "{standing}"), what: "the scorers"}}
}

// Publish writes how a process stands, again and again until the context ends,
// and takes it away then.
func (s *Scorers) Publish(ctx context.Context, process string, now func() Process) {
	if s != nil {
		s.publish(ctx, process, func() any { return now() })
	}
}

// Read is what the processes have written lately, by host and id.
func (s *Scorers) Read(ctx context.Context) (all []Process, err error) {
	if s == nil {
		return nil, ErrNoRedis
	}
	err = s.read(ctx, func(text []byte) error {
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

// Of is a scorer as it stands at all processes together, and at how many. Of what
// cannot be added the slowest and the newest count: half of all events are no
// slower than the slowest half.
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
