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

// triesBeforeWarning is the number of tries, about five seconds, after which the log says that a
// partition cannot be read.
const triesBeforeWarning = 15

// wakeRouter tells the router that a partition has no fetcher.
func (c *Consumer) wakeRouter() {
	select {
	case c.lost <- struct{}{}:
	default:
	}
}

// routePartitions gives each partition without a fetcher to the fetcher of its leader. Only one
// goroutine runs routePartitions, so no partition is given to two fetchers.
func (c *Consumer) routePartitions() {
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

// routeDue tries the partitions whose backoff is over, and returns the time until more are due.
func (c *Consumer) routeDue(now time.Time) time.Duration {
	wait := time.Hour
	lives := knownLives{b: c.b}
	c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		lost, left, first := p.leader == unknownNode && !p.gone, p.notBefore.Sub(now), p.retries.failures == 0 && !p.doubted
		p.mu.Unlock()
		if lost && left <= 0 {
			left = c.routeOne(p, first, &lives)
			lost = left > 0
		}
		if lost {
			wait = min(wait, left)
		}
	})
	return wait
}

// routeOne finds the leader of one partition, or returns the wait before the next try. The first
// try may use cached leaders; after a failure Kafka is asked again.
func (c *Consumer) routeOne(p *inPartition, first bool, lives *knownLives) time.Duration {
	maxAge := maxLeaderAge
	if first {
		maxAge = time.Minute
	}
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
	defer cancel()
	leaders, err := c.b.leaders(ctx, p.tp.Topic, maxAge)
	p.mu.Lock()
	p.surplus = err == nil && int(p.tp.Partition) >= len(leaders)
	surplus, mayBeOther := p.surplus, !first && p.hasLife()
	p.mu.Unlock()
	if err == nil && mayBeOther && (c.member != nil || !surplus) { // a member says that the events of the old stream are lost
		err = c.checkLife(ctx, p, lives)
	}
	if err == nil && surplus {
		err = errSurplus
	}
	c.recordMissing(p.tp, err)
	if err == nil && leaders[p.tp.Partition] >= 0 {
		c.addToFetcher(p, leaders[p.tp.Partition])
		return 0
	}
	if err != nil && !isTransient(err) && c.ctx.Err() == nil {
		c.failReading(fmt.Errorf("read stream %s, partition %d: %w", p.stream, p.tp.Partition, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.putOff(cmp.Or(err, error(kafka.LeaderNotAvailable)))
}

// putOff counts a failed try to read a partition, and returns the pause before the next one. The log says
// once that the partition cannot be read. An answer resets the count. The caller holds the lock.
func (p *inPartition) putOff(reason error) time.Duration {
	wait := p.retries.next()
	p.notBefore = time.Now().Add(wait)
	if p.retries.failures == triesBeforeWarning {
		p.c.b.log.Warn("consumer: reading a partition failed; retrying", "stream", p.stream, "partition", p.tp.Partition, "reason", reason)
	}
	return wait
}

// errSurplus is the error of a partition that its stream no longer has.
var errSurplus = fmt.Errorf("the stream was created again with fewer partitions: %w", kafka.UnknownTopicOrPartition)

// checkLife begins another life if the stream was created again. Each partition is checked after a refused
// request and after a pause: while a stream is deleted, Kafka refuses requests.
func (c *Consumer) checkLife(ctx context.Context, p *inPartition, lives *knownLives) error {
	p.mu.Lock()
	l, a := p.life, fetchAsk{p: p, position: p.position, epoch: p.epoch, series: p.series}
	p.mu.Unlock()
	now, isNew, err := lives.after(ctx, p.tp.Topic, l)
	switch {
	case isNew && c.member == nil:
		now.base = 0
		err = c.beginAnew(ctx, a, now)
	case isNew:
		err = c.beginLife(ctx, a, now)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		return err
	case p.life == l && !isNew:
		p.life = now
	case p.life != now: // the partition has moved meanwhile
		return kafka.LeaderNotAvailable
	}
	return nil
}

// addToFetcher gives a partition to a server's fetcher.
func (c *Consumer) addToFetcher(p *inPartition, node int32) {
	c.mu.Lock()
	f := c.fetchers[node]
	if f == nil {
		f = &fetcher{c: c, node: node, wake: make(chan struct{}, 1), requests: requestContext{parent: c.ctx}}
		c.fetchers[node] = f
		c.running.Go(f.run)
	}
	c.mu.Unlock()
	p.mu.Lock()
	p.leader, p.asked, p.heard, p.doubted = node, fetchAsk{}, time.Now(), false
	p.mu.Unlock()
	f.mu.Lock()
	if !slices.Contains(f.parts, p) { // the partition may be back before the fetcher has removed it
		f.parts = append(f.parts, p)
	}
	slices.SortFunc(f.parts, func(a, b *inPartition) int { return comparePartitions(a.tp, b.tp) })
	f.mu.Unlock()
	f.wakeUp()
	time.AfterFunc(shortPoll, f.abandonPoll) // later, because a consumer gets many partitions at once
}

func comparePartitions(a, b wire.TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}
