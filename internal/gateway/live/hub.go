package live

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Hub has the versions of all topics that have listeners. It is safe for concurrent use.
//
// The version of a topic of facts is a digest of the offset after the last fact about the topic, in each partition. A
// hub does not know the facts from before the first listener came. It takes the place of the reader then. So the version
// may differ from that of another gateway although nothing has changed, but it is never equal after a change.
type Hub struct {
	mu     sync.Mutex
	place  []int64 // next offset of each partition of the facts
	topics map[string]*topic
	polls  chan struct{} // has an element if a polled topic has no version yet
}

// topic is one topic. The topic commands is kept without listeners too, because its version is not polled.
type topic struct {
	kept      bool
	version   Version // empty until it is known
	places    []int64 // of a topic of facts: offset after the last fact about it, in each partition
	digest    uint64
	content   Version // of a polled topic: version of its content; empty until it is known
	polled    bool
	listeners map[*Listener]struct{}
}

// NewHub returns a hub without listeners.
func NewHub() *Hub {
	return &Hub{topics: map[string]*topic{Commands: {kept: true, listeners: map[*Listener]struct{}{}}}, polls: make(chan struct{}, 1)}
}

// Begin sets the place from which facts are read.
func (h *Hub) Begin(place []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.place = slices.Clone(place)
}

// Fact records a fact about some topics. The parameter next is the offset after the fact.
func (h *Hub) Fact(partition int32, next int64, topics []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.place = set(h.place, partition, next)
	for _, name := range topics {
		if t := h.topics[name]; t != nil {
			t.move(partition, next)
			t.announce(name)
		}
	}
}

// Lost records that facts about unknown topics were lost. All topics of facts may have changed.
func (h *Hub) Lost(partition int32, next int64) {
	h.mu.Lock()
	all := make([]string, 0, len(h.topics))
	for name, t := range h.topics {
		if t.places != nil {
			all = append(all, name)
		}
	}
	h.mu.Unlock()
	h.Fact(partition, next, all)
}

// Set records the version of a topic's content. A topic without listeners is ignored.
func (h *Hub) Set(name string, content Version) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[name]; t != nil && t.content != content {
		t.content = content
		t.renew()
		t.announce(name)
	}
}

// renew computes the version from the facts and the content.
func (t *topic) renew() {
	switch {
	case t.places == nil:
		t.version = t.content
	case !t.polled:
		t.version = versionOf(t.digest)
	case t.content != "":
		t.version = VersionOf(fmt.Append(nil, t.digest, t.content))
	}
}

func set(places []int64, partition int32, next int64) []int64 {
	for int(partition) >= len(places) {
		places = append(places, 0)
	}
	places[partition] = next
	return places
}

// move changes the digest in constant time, because a fact may move topics with many partitions.
func (t *topic) move(partition int32, next int64) {
	before := int64(0)
	if int(partition) < len(t.places) {
		before = t.places[partition]
	}
	t.places = set(t.places, partition, next)
	t.digest ^= mix(partition, before) ^ mix(partition, next)
	t.renew()
}

// mix is a permutation of 64 bits (splitmix64). It is the same in all processes.
func mix(partition int32, next int64) uint64 {
	if next == 0 {
		return 0 // a partition that is not known yet counts as empty
	}
	z := uint64(next) + uint64(partition+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (t *topic) announce(name string) {
	for l := range t.listeners {
		l.pending[name] = struct{}{}
		l.wakeUp()
	}
}

// Poll compares the contents of the polled topics that have listeners, until the context ends. The function look
// returns the version of a topic's content.
func (h *Hub) Poll(ctx context.Context, every time.Duration, look func(ctx context.Context, topic string) Version) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.poll(ctx, look, func(*topic) bool { return true })
		case <-h.polls:
			h.poll(ctx, look, func(t *topic) bool { return t.content == "" })
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hub) poll(ctx context.Context, look func(context.Context, string) Version, due func(*topic) bool) {
	h.mu.Lock()
	var names []string
	for name, t := range h.topics {
		if t.polled && due(t) {
			names = append(names, name)
		}
	}
	h.mu.Unlock()
	for _, name := range names {
		h.Set(name, look(ctx, name))
	}
}

// Listen returns a listener of some topics. The first update has all topics whose versions differ from the known
// ones. The caller closes the listener.
func (h *Hub) Listen(topics []string, known Known) *Listener {
	l := &Listener{hub: h, topics: topics, known: Known{}, pending: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range topics {
		t := h.topics[name]
		if t == nil {
			t = h.newTopic(name)
		}
		t.listeners[l] = struct{}{}
		if v, ok := known[name]; ok {
			l.known[name] = v
		}
		l.pending[name] = struct{}{}
	}
	return l
}

func (h *Hub) newTopic(name string) *topic {
	t := &topic{listeners: map[*Listener]struct{}{}, polled: isPolled(name)}
	h.topics[name] = t
	if t.polled {
		select {
		case h.polls <- struct{}{}:
		default:
		}
	}
	if hasNoFacts(name) {
		return t
	}
	t.places = slices.Grow([]int64{}, len(h.place))
	t.renew()
	for partition, next := range h.place {
		t.move(int32(partition), next)
	}
	return t
}

// Topics returns the number of topics that have listeners.
func (h *Hub) Topics() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, t := range h.topics {
		if len(t.listeners) > 0 {
			n++
		}
	}
	return n
}

// Listener gets the changes of some topics. It has one entry a topic, however many changes its reader misses.
type Listener struct {
	hub     *Hub
	topics  []string
	wake    chan struct{}       // has an element if there may be something pending
	known   Known               // versions that the reader was given
	pending map[string]struct{} // topics that may have changed since
}

// Pace says how often a listener gets an update.
type Pace struct {
	Every time.Duration // least time between two updates; changes in between become one
	Alive time.Duration // longest time without an update; then an empty one is sent
	First time.Duration // time that the first update waits for topics without a version
}

// Run calls send for each update until the context ends or send fails. An update without topics is a sign of life.
// After the call, the listener counts its topics as known.
func (l *Listener) Run(ctx context.Context, p Pace, send func(changed, known Known) error) error {
	if err := l.awaitVersions(ctx, p.First); err != nil {
		return err
	}
	for last := (time.Time{}); ; {
		changed := l.take()
		if len(changed) > 0 || time.Since(last) >= p.Alive {
			if err := send(changed, l.known); err != nil {
				return err
			}
			last = time.Now()
		}
		if err := l.rest(ctx, p.Every, p.Alive-time.Since(last)); err != nil {
			return err
		}
	}
}

// rest waits for a change, or for the time most. It waits for the time least in any case.
func (l *Listener) rest(ctx context.Context, least, most time.Duration) error {
	sleep := time.NewTimer(least)
	defer sleep.Stop()
	select {
	case <-sleep.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	sleep.Reset(most - least)
	select {
	case <-l.wake:
	case <-sleep.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// awaitVersions waits until all topics have a version, or until the time is over.
func (l *Listener) awaitVersions(ctx context.Context, within time.Duration) error {
	late := time.NewTimer(within)
	defer late.Stop()
	for !l.complete() {
		select {
		case <-l.wake:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (l *Listener) complete() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, name := range l.topics {
		if l.hub.topics[name].version == "" {
			return false
		}
	}
	return true
}

// take returns the topics that have another version than the known one.
func (l *Listener) take() Known {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	changed := Known{}
	for name := range l.pending {
		if v := l.hub.topics[name].version; v != "" && v != l.known[name] {
			changed[name], l.known[name] = v, v
		}
	}
	clear(l.pending)
	return changed
}

func (l *Listener) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close ends listening.
func (l *Listener) Close() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, name := range l.topics {
		t := l.hub.topics[name]
		if delete(t.listeners, l); len(t.listeners) == 0 && !t.kept {
			delete(l.hub.topics, name)
		}
	}
}
