package broker

import (
	"sync/atomic"
	"time"
)

// ProducerStats count what a producer has done since it was opened, and say what
// it holds now.
type ProducerStats struct {
	Events  uint64 // acknowledged by all in-sync replicas
	Bytes   uint64 // of those events
	Batches uint64 // that those events were stored in
	Failed  uint64 // events given up after they had been accepted
	InDoubt uint64 // of the failed: those that may stand on the stream all the same
	Refused uint64 // events not accepted: invalid, too large, of no stream, after Close, or while the buffer stayed full
	Retries uint64 // times a batch was put off to be sent again

	Requests    uint64        // to Kafka, whatever came of them
	RequestTime time.Duration // that they took, all together

	BufferedEvents int   // without an answer yet
	BufferedBytes  int64 // of those events
	Waiting        int   // callers that wait for room in the buffer
}

// producerCounts is touched once a batch or a request, never once an event, so
// that nobody pays for counting.
type producerCounts struct {
	events, bytes, batches, failed, inDoubt, refused, retries atomic.Uint64
	requests                                                  atomic.Uint64
	requestTime                                               atomic.Int64
}

// Stats may be asked at any time, also after Close.
func (p *Producer) Stats() ProducerStats {
	inDoubt := p.counts.inDoubt.Load() // before the whole, which is counted first: so it is never more
	s := ProducerStats{
		Events: p.counts.events.Load(), Bytes: p.counts.bytes.Load(), Batches: p.counts.batches.Load(),
		Failed: p.counts.failed.Load(), InDoubt: inDoubt, Refused: p.counts.refused.Load(),
		Retries: p.counts.retries.Load(), Requests: p.counts.requests.Load(),
		RequestTime: time.Duration(p.counts.requestTime.Load()),
	}
	p.budget.mu.Lock()
	defer p.budget.mu.Unlock()
	s.BufferedEvents, s.Waiting = p.budget.events, len(p.budget.waiting)
	s.BufferedBytes = int64(p.opt.MaxBuffered) - p.budget.left
	return s
}

// asked counts a request when it has come back.
func (c *producerCounts) asked(began time.Time) {
	c.requests.Add(1)
	c.requestTime.Add(int64(time.Since(began)))
}

func (c *producerCounts) stored(events int, bytes int64) {
	c.events.Add(uint64(events))
	c.bytes.Add(uint64(bytes))
	c.batches.Add(1)
}

func (c *producerCounts) gaveUp(events int, doubt bool) {
	c.failed.Add(uint64(events))
	if doubt {
		c.inDoubt.Add(uint64(events))
	}
}

// ConsumerStats count what a consumer has done since it was opened, and say what
// it holds now.
type ConsumerStats struct {
	Events      uint64 // that Poll has handed out
	Done        uint64 // of those, ended; the others are open
	DeadLetters uint64 // written
	Lost        uint64 // offsets that were gone before they were read
	Rebalances  uint64 // generations of the group that this member has taken part in

	Fetches      uint64 // requests to Kafka, whatever came of them
	FetchedBytes uint64 // in the answers

	Assigned   int   // partitions that the group has last given to this member
	Partitions int   // that are read here now; what is new to it is only read in a moment
	OpenBytes  int64 // fetched and not yet dealt with
}

type consumerCounts struct {
	events, done, deadLetters, lost, rebalances, fetches, fetchedBytes atomic.Uint64
	assigned                                                           atomic.Int64
}

// Stats may be asked at any time, also after Close.
func (c *Consumer) Stats() ConsumerStats {
	done := c.counts.done.Load() // before those handed out, as above
	s := ConsumerStats{
		Events: c.counts.events.Load(), Done: done, DeadLetters: c.counts.deadLetters.Load(),
		Lost: c.counts.lost.Load(), Rebalances: c.counts.rebalances.Load(), Assigned: int(c.counts.assigned.Load()),
		Fetches: c.counts.fetches.Load(), FetchedBytes: c.counts.fetchedBytes.Load(), OpenBytes: c.room.used.Load(),
	}
	c.mu.Lock()
	s.Partitions = len(c.parts)
	c.mu.Unlock()
	return s
}
