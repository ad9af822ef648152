package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// triesUntold is after how many tries, some five seconds, the log says that a
// partition cannot be read.
const triesUntold = 15

// reroute wakes the router, because a partition has no fetcher.
func (c *Consumer) reroute() {
	select {
	case c.lost <- struct{}{}:
	default:
	}
}

// route gives each partition without a fetcher to that of the server that
// leads it. It is one goroutine, so no partition is ever given to two.
func (c *Consumer) route() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(c.routeDue(time.Now()))
		select {
		case <-c.lost:
		case <-timer.C:
		case <-c.ctx.Done():
			return
		}
	}
}

// routeDue tries those whose backoff is over and returns how long until more
// are due.
func (c *Consumer) routeDue(now time.Time) time.Duration {
	wait := time.Hour
	c.each(func(p *inPartition) {
		p.mu.Lock()
		lost, left, first := p.leader == unknownNode && !p.gone, p.notBefore.Sub(now), p.retries.n == 0
		p.mu.Unlock()
		if lost && left <= 0 {
			left = c.routeOne(p, first)
			lost = left > 0
		}
		if lost {
			wait = min(wait, left)
		}
	})
	return wait
}

// routeOne finds one partition's leader; otherwise it returns how long to wait
// before the next try. What is known of leaders will do the first time; after
// a failure they are asked for anew.
func (c *Consumer) routeOne(p *inPartition, first bool) time.Duration {
	maxAge := fresh
	if first {
		maxAge = time.Minute
	}
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
	defer cancel()
	leaders, err := c.b.leaders(ctx, p.tp.Topic, maxAge)
	if err == nil && int(p.tp.Partition) >= len(leaders) {
		err = kafka.UnknownTopicOrPartition
	}
	c.missing(p.tp, err)
	if err == nil && leaders[p.tp.Partition] >= 0 {
		c.adopt(p, leaders[p.tp.Partition])
		return 0
	}
	if err != nil && !passing(err) && c.ctx.Err() == nil {
		c.fail(fmt.Errorf("read stream %s, partition %d: %w", p.stream, p.tp.Partition, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := p.retries.next()
	p.notBefore = time.Now().Add(wait)
	if p.retries.n == triesUntold {
		c.b.log.Warn("a partition cannot be read yet", "stream", p.stream, "partition", p.tp.Partition, "reason", cmp.Or(err, error(kafka.LeaderNotAvailable)))
	}
	return wait
}

// adopt gives a partition to a server's fetcher.
func (c *Consumer) adopt(p *inPartition, node int32) {
	c.mu.Lock()
	f := c.fetchers[node]
	if f == nil {
		f = &fetcher{c: c, node: node, wake: make(chan struct{}, 1)}
		c.fetchers[node] = f
		c.running.Go(f.run)
	}
	c.mu.Unlock()
	p.mu.Lock()
	p.leader = node
	p.mu.Unlock()
	f.mu.Lock()
	if !slices.Contains(f.parts, p) { // it may be back before the fetcher has missed it
		f.parts = append(f.parts, p)
	}
	slices.SortFunc(f.parts, func(a, b *inPartition) int { return comparePartitions(a.tp, b.tp) })
	f.mu.Unlock()
	f.nudge()
}

func comparePartitions(a, b wire.TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}
