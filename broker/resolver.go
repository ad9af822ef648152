package broker

import (
	"context"
	"sync"
	"time"
)

// resolver holds partitions that could not be sent to their supposed leader. For each partition the
// resolver waits for the backoff, finds the leader and gives the partition to the leader's sender.
type resolver struct {
	mu   sync.Mutex
	list []lost
	wake chan struct{}
}

type lost struct {
	o    *outPartition
	at   time.Time // time of the next try
	last error
}

// add adds a partition.
func (r *resolver) add(o *outPartition, err error) {
	o.mu.Lock()
	o.place = homeless
	wait := o.queue[0].retries.next()
	o.mu.Unlock()
	r.mu.Lock()
	r.list = append(r.list, lost{o, time.Now().Add(wait), err})
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *resolver) run(p *Producer) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, wait := r.due(time.Now())
		r.resolveAll(p, due)
		if len(due) > 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-r.wake:
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}
	}
}

func (r *resolver) due(now time.Time) (due []lost, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Hour
	keep := r.list[:0]
	for _, l := range r.list {
		if left := l.at.Sub(now); left > 0 {
			keep = append(keep, l)
			wait = min(wait, left)
		} else {
			due = append(due, l)
		}
	}
	r.list = keep
	return due, wait
}

// maxLeaderAge is the age up to which cached leaders may be used after a failure. The backoff is
// longer on average, so Kafka was asked after the failure.
const maxLeaderAge = 10 * time.Millisecond

// resolveAll asks for the leaders once for each topic, because a topic may have a thousand
// partitions. If the cluster does not answer, each request lasts the whole timeout, and events must
// be given up in time.
func (r *resolver) resolveAll(p *Producer, due []lost) {
	failed := map[*outTopic]error{}
	for _, l := range due {
		r.resolve(p, l, failed)
	}
}

func (r *resolver) resolve(p *Producer, l lost, failed map[*outTopic]error) {
	if p.tx != nil && p.tx.faulty() != nil { // the transaction aborts, so none of its events are sent
		l.o.failHead(p, p.tx.faulty())
		p.requeue(l.o)
		return
	}
	if int(l.o.index) >= len(l.o.topic.now()) {
		l.o.failHead(p, errSurplus)
		p.requeue(l.o)
		return
	}
	if !l.o.expireHeads(p, l.last) {
		return
	}
	if p.tx != nil && p.tx.faulty() != nil {
		p.retryLater(l.o, l.last)
		return
	}
	var leaders []int32
	err := failed[l.o.topic]
	if err == nil {
		ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
		leaders, err = p.b.leaders(ctx, l.o.topic.name, maxLeaderAge)
		cancel()
		failed[l.o.topic] = err
	}
	if p.ctx.Err() != nil {
		return // Close calls the callbacks
	}
	if err != nil || int(l.o.index) >= len(leaders) || leaders[l.o.index] < 0 {
		if err == nil {
			err = l.last
		}
		r.add(l.o, err)
		return
	}
	l.o.mu.Lock()
	l.o.place, l.o.leader = listed, leaders[l.o.index]
	l.o.mu.Unlock()
	p.sender(leaders[l.o.index]).enqueue(l.o)
}
