package score

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/keys"
)

// mostBytes bounds the bytes of a batch, and mostEvents its events if the config does not.
const (
	mostBytes  = 12 << 20
	mostEvents = 8192
)

// gather collects the available events, up to a full batch. That may be a single event, or all
// events that arrived while the last batch was processed. gather waits only for the first delivery.
// The batch stays empty if there was something else to do.
func (s *session) gather(ctx context.Context, b *batch) error {
	if err := s.collect(ctx, b); err != nil {
		return err
	}
	for b.events < s.most && b.bytes < mostBytes {
		d, err := s.poll(ctx, b)
		if d == nil {
			return err
		}
		s.addDelivery(b, d)
	}
	return nil
}

// poll returns the next delivery; nil if the batch need not wait for it.
func (s *session) poll(ctx context.Context, b *batch) (*broker.Delivery, error) {
	d, err := s.c.Poll(s.already)
	switch {
	case d != nil:
		return d, nil
	case errors.Is(err, broker.ErrClosed):
		s.closing = true
	case !errors.Is(err, context.Canceled):
		return nil, err
	}
	if s.closing {
		return nil, nil
	}
	if b.isEmpty() {
		return s.wait(ctx, time.Time{}, false)
	}
	if until, committer, grows := b.growth(s.c.Behind, s.wake.committing); grows {
		return s.wait(ctx, until, committer)
	}
	return nil, nil
}

// growth reports whether a batch waits for more events although none is there now: until a time,
// unless that is zero, or until the committer is free.
func (b *batch) growth(behind, committing func() bool) (until time.Time, committer, grows bool) {
	switch {
	case b.events == 0:
	case behind():
		return b.began.Add(backlogPatience), false, true
	case b.events < overlapSize && committing():
		return time.Time{}, true, true
	}
	return time.Time{}, false, false
}

// backlogPatience limits the time in which a batch of a backlog grows to its full size. Each
// transaction costs Kafka a marker in each partition, and the events of a backlog are late anyway.
const backlogPatience = 100 * time.Millisecond

// overlapSize is the batch size from which it makes sense to compute a batch while another one is
// committed. A smaller batch would only wait for that commit. It grows until the committer is
// free, so that no event waits for two other commits.
const overlapSize = 256

// wait waits for a delivery or a wakeup. It also waits for a time, unless that is zero, and for the
// committer to become free, if committer is set.
func (s *session) wait(ctx context.Context, until time.Time, committer bool) (*broker.Delivery, error) {
	if at, some := s.nextDue(); some && (until.IsZero() || at.Before(until)) {
		until = at
	}
	quiet, cancel := ctx, context.CancelFunc(nil)
	if until.IsZero() {
		quiet, cancel = context.WithCancel(ctx)
	} else {
		quiet, cancel = context.WithDeadline(ctx, until)
	}
	defer cancel()
	defer s.wake.onWake(cancel, committer)()
	d, err := s.c.Poll(quiet)
	switch {
	case d != nil:
		return d, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case quiet.Err() != nil, errors.Is(err, broker.ErrClosed): // the next poll returns that again
		return nil, nil
	}
	return nil, err
}

// addDelivery adds a delivery's events to the batch.
func (s *session) addDelivery(b *batch, d *broker.Delivery) {
	t := s.assignments.assignmentOf(d)
	if t == nil {
		b.foreign = append(b.foreign, d)
		return
	}
	s.begin(t)
	one := &inFlight{d: d, of: t}
	t.deliveries = append(t.deliveries, one)
	b.touch(one)
	b.events += len(d.Events)
	for i := range d.Events {
		e := &d.Events[i]
		b.bytes += len(e.Data)
		s.choose(b, item{v: &e.View, offset: e.Offset, logged: e.Time.UnixMilli(), delivery: one})
	}
	if n := len(d.Events); n > 0 && t.found != nil && d.Events[n-1].Offset >= t.found.last {
		t.found = nil
	}
}

// touch notes that the batch has a part of an assignment.
func (b *batch) touch(t *inFlight) {
	if b.began.IsZero() {
		b.began = time.Now()
	}
	for i := range b.parts {
		if p := &b.parts[i]; p.of == t.of {
			if p.from.d == nil {
				p.from = t
			}
			return
		}
	}
	b.parts = append(b.parts, batchPart{of: t.of, from: t})
}

// begin starts to track an assignment. The versions that have scored a partition
// survive an aborted transaction, as far as they were committed.
func (s *session) begin(t *assignment) {
	if t.known {
		return
	}
	t.known = true
	if t.before != nil {
		committed := s.committed.Load()
		for model, v := range t.before.versions {
			if v.batch <= committed {
				t.versions[model] = v
			}
		}
		t.before = nil
	}
	s.active = append(s.active, t)
}

// choose adds an event to the batch and finds its model.
func (s *session) choose(b *batch, it item) {
	t := it.delivery.of
	switch {
	case !selects(s.conf.Types, it.v.Type):
		it.verdict = passedOver
	case t.found != nil && t.found.hasOutput(it.v, it.offset), it.offset < t.ahead && t.held.seen(it.v, it.offset):
		it.verdict = skipped
	default:
		s.address(b, &it)
	}
	b.items = append(b.items, it)
}

// address finds the key and the model. Events that already wait for the model come first.
func (s *session) address(b *batch, it *item) {
	key, err := s.place.keyOf(it.v)
	if err == nil {
		it.key, err = s.cache.entryOf(key)
	}
	if err != nil {
		it.verdict, it.reason = dead, err
		return
	}
	if one := it.delivery.of; one.holding && it.held == nil && one.held.isWaiting(key, it.key.target.name) {
		s.hold(it)
		return
	}
	t := it.key.target
	if len(t.waiting) > 0 && t.batch != b.seq {
		s.pull(b, t)
	}
	b.join(it, t)
}

// selects reports whether events of a type are scored: those of the list, or without a
// list all types but Tidemill's.
func selects(types []string, typ string) bool {
	if len(types) == 0 {
		return !tidemill.ReservedType(typ)
	}
	_, found := slices.BinarySearch(types, typ)
	return found
}

// keyPlace is where an event has its key.
type keyPlace struct {
	place keys.Place
	need  bool // whether the model's name contains the key, so that there is no model without one
}

func newKeyPlace(place, model string) keyPlace {
	if place == "" {
		place = config.KeySubject
	}
	return keyPlace{place: keys.NewPlace(place), need: strings.Contains(model, "{key}")}
}

var errNoKey = errors.New("it has no key")

// keyOf returns an event's key, which may point into the event.
func (k *keyPlace) keyOf(v *broker.View) (string, error) {
	key := k.place.Of(v)
	if key == "" && !k.need {
		return "", nil
	}
	if key == "" {
		return "", fmt.Errorf("%w: there is no text at %s; publish it with one, or change `key` of the scorer", errNoKey, k.place.String())
	}
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("the value at %s %w", k.place.String(), err)
	}
	return key, nil
}

// maxKey is the longest key, as for recipes.
const maxKey = 256

// checkKey returns why a text cannot be a key. Such a text has no model either.
func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("is not a key: it has %d bytes, and a key may have %d", len(key), maxKey)
	}
	plain := true
	for i := range len(key) {
		plain = plain && key[i] >= ' ' && key[i] < 0x7f
	}
	if plain {
		return nil
	}
	return checkOddKey(key)
}

func checkOddKey(key string) error {
	if !utf8.ValidString(key) {
		return errors.New("cannot be a key: it is not valid UTF-8")
	}
	if strings.ContainsFunc(key, unicode.IsControl) {
		return errors.New("is not a key: it has a control character")
	}
	return nil
}

// target is a model, by its name.
type target struct {
	name string
	slot *serving.Slot // nil until the model has a champion, because an event may name any model

	batch uint64 // batch of the group
	group int32

	waiting []item // events that wait for the model, in the order of arrival
	queued  bool   // whether the session lists it among its queues
	version int    // version that text is of
	text    string

	asked   []*assignment // those with parked events that wait for the model
	kept    *infer.Model  // model kept for the present batch
	watched bool          // whether a change of the slot wakes the pipeline
	pace    pace
	away    int       // number of times in a row that ONNX Runtime's process did not take the model
	back    time.Time // time at which the model is asked again
}

// keyEntry is a key of past events.
type keyEntry struct {
	key    string
	target *target
	// assignment and version that scored the last event of the key here
	assignment *assignment
	model      string
	version    int
}

// cache finds the model of a key. It forgets a key after as many other keys have been
// looked up.
type cache struct {
	template    string
	most        int
	keys, older map[string]*keyEntry
	targets     map[string]*target
	slots       int // number of targets with a slot
}

const mostKeys = 1 << 16

func newCache(template string, most int) *cache {
	return &cache{template: template, most: most, keys: map[string]*keyEntry{}, targets: map[string]*target{}}
}

// entryOf returns the entry of a key, which may point into an event.
func (c *cache) entryOf(key string) (*keyEntry, error) {
	if k := c.keys[key]; k != nil {
		return k, nil
	}
	k := c.older[key]
	if k == nil {
		name, err := modelName(c.template, key)
		if err != nil {
			return nil, err
		}
		k = &keyEntry{key: string([]byte(key)), target: c.target(name)}
	}
	c.keep(k)
	return k, nil
}

// modelName returns the name of a key's model.
func modelName(template, key string) (string, error) {
	name, err := config.Expand(template, func(string) (string, bool) { return key, true })
	if err == nil {
		err = tidemill.CheckDataset(name)
	}
	if err != nil {
		return "", fmt.Errorf("its key names no model: %w", err)
	}
	return name, nil
}

func (c *cache) keep(k *keyEntry) {
	if len(c.keys) >= c.most {
		c.older, c.keys = c.keys, make(map[string]*keyEntry, c.most)
		c.sweep()
	}
	c.keys[k.key] = k
}

// sweep forgets the models of forgotten keys, unless events wait for them.
func (c *cache) sweep() {
	used := map[*target]bool{}
	for _, k := range c.older {
		used[k.target] = true
	}
	for name, t := range c.targets {
		if !used[t] && len(t.waiting)+len(t.asked) == 0 {
			delete(c.targets, name)
			if t.slot != nil {
				c.slots--
			}
		}
	}
}

// target returns the target of a model's name.
func (c *cache) target(name string) *target {
	t := c.targets[name]
	if t == nil {
		t = &target{name: name}
		c.targets[name] = t
	}
	return t
}
