package score

import "time"

// Standing is how a scorer stands here. The counts begin when it is opened.
type Standing struct {
	Name         string        `json:"name"`
	Events       uint64        `json:"events"` // read
	Scored       uint64        `json:"scored"`
	Passed       uint64        `json:"passed"` // of no model, or not selected
	Dropped      uint64        `json:"dropped"`
	DeadLettered uint64        `json:"deadLettered"`
	Held         int64         `json:"held"`    // parked, until their models are loaded
	Skipped      uint64        `json:"skipped"` // after a takeover: scored already
	Aborted      uint64        `json:"aborted"` // transactions
	Rate         float64       `json:"rate"`    // events a second, lately
	Lag          int64         `json:"lag"`     // events that are not read yet
	P50          time.Duration `json:"p50"`     // from the log to the log, lately
	P99          time.Duration `json:"p99"`
	Models       int           `json:"models"` // in use
	Swaps        []Swap        `json:"swaps"`  // the newest, newest first
	LastError    string        `json:"lastError,omitempty"`
	LastErrorAt  time.Time     `json:"lastErrorAt,omitzero"`
}

// Swap is the first event of a partition that a version has scored.
type Swap struct {
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Before    int       `json:"before"` // 0 if it is not known here
	Version   int       `json:"version"`
	Stream    string    `json:"stream"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
}

// Standing tells it.
func (s *Scorer) Standing() Standing {
	c := &s.counts
	at := Standing{Name: s.conf.Name, Events: c.events.Load(), Scored: c.scored.Load(), Passed: c.passed.Load(), Dropped: c.dropped.Load(),
		DeadLettered: c.dead.Load(), Held: c.held.Load(), Skipped: c.skipped.Load(), Aborted: c.aborted.Load(), Lag: c.lag.Load(),
		P50: time.Duration(c.latency.quantile(.5)) * time.Millisecond, P99: time.Duration(c.latency.quantile(.99)) * time.Millisecond,
		Models: int(c.models.Load()), Swaps: []Swap{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	at.Rate, at.LastError, at.LastErrorAt = c.rate.of(time.Now()), c.fault, c.at
	if when, err := s.o.Models.Failure(); err != nil && when.After(at.LastErrorAt) {
		at.LastError, at.LastErrorAt = err.Error(), when
	}
	for i := len(c.newest) - 1; i >= 0 && len(at.Swaps) < swapsKept; i-- {
		at.Swaps = append(at.Swaps, c.newest[i])
	}
	return at
}
