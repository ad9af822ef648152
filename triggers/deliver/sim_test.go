package deliver

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
)

var (
	simSeeds = flag.Int("sim.seeds", 150, "how many schedules the simulation tries")
	simSeed  = flag.Uint64("sim.seed", 0, "the one schedule to try, traced step by step")
)

// world has the surroundings of a partition: its source, its parked log, its group, its
// subscribers, and every process that considers itself the owner.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	now   millis
	trace bool
	terms *triggerSettings

	source []string // keys of the events; empty is none
	large  map[int64]bool
	fickle bool // whether the order of trigger a changes
	done   map[int64]bool
	at     int64 // committed offset of the group; none before the first commit

	log      []logged
	standing map[string]bool // items on the log that have not ended
	mark     int64           // mark of the group in the parked log

	owners []*owner // only the last is the real owner

	over    map[string]map[int64]bool // ended events by trigger and source offset
	parkedE map[string]map[int64]bool
	sick    map[string]int // state of each trigger's subscriber: 0 well, 1 random, 2 fails, 3 hangs
	paused  map[string]bool
	open    map[string]bool  // triggers whose circuit is open
	probes  int              // attempts of probes
	refills int              // spilled records that were read back
	first   map[string]int64 // recorded offset at which each trigger begins
	budget  int              // number of attempts left
	renewed int              // number of records that were written again
	asks    *simActs
}

type logged struct {
	in      *broker.Incoming
	visible bool
}

// owner is a process that owns the partition, or considers itself the owner.
type owner struct {
	p      *partition
	read   int64
	queue  []*item
	flying []*item
	loads  []load
	pinned []load
	backs  []load // spilled records that are being read
	epoch  int
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: 1_700_000_000_000, done: map[int64]bool{}, at: none, mark: none, over: map[string]map[int64]bool{}, standing: map[string]bool{},
		parkedE: map[string]map[int64]bool{}, sick: map[string]int{}, paused: map[string]bool{}, open: map[string]bool{}, first: map[string]int64{}, budget: 4, asks: newSimActs()}
	w.large, w.fickle = map[int64]bool{}, w.rng.IntN(5) == 0
	w.configure("a", "b")
	w.takeOver()
	return w
}

func (w *world) say(format string, a ...any) {
	if w.trace {
		w.t.Logf(format, a...)
	}
}

// configure makes a config with the given triggers: a gets everything, b every second
// event, and c everything without order.
func (w *world) configure(names ...string) {
	all := map[string]*config.Trigger{}
	for _, n := range names {
		all[n] = &config.Trigger{Name: n, Delivery: config.Delivery{Ordered: n != "c" && !(n == "a" && w.fickle && w.rng.IntN(2) == 0), Attempts: w.budget}}
	}
	paused := map[string]bool{}
	for n, is := range w.paused {
		paused[n] = is
	}
	open := maps.Clone(w.open)
	w.terms = &triggerSettings{triggers: all, paused: func(n string) bool { return paused[n] }, open: func(n string) bool { return open[n] },
		plan: &plan{triggers: names, match: func(v *broker.View, dst []int) []int {
			for i, n := range names {
				if n != "b" || v.ID[len(v.ID)-1]%2 == 0 {
					dst = append(dst, i)
				}
			}
			return dst
		}}}
}

func matches(trigger string, o int64) bool { return trigger != "b" || o%2 == 0 }

func (w *world) bounds() bounds {
	b := defaultBounds()
	b.window, b.event = 30, 1000
	b.renewal = parked.Renewal{Least: 1 + w.rng.IntN(20), Share: 1 + w.rng.IntN(3)}
	if w.rng.IntN(3) == 0 {
		b.skew = time.Second
	}
	if w.rng.IntN(2) == 0 {
		b.index = 1 + w.rng.IntN(8)
	}
	if w.rng.IntN(3) == 0 {
		b.retention = time.Minute
	}
	return b
}

// takeOver rebuilds a new owner from the log. The former owner continues until it notices.
func (w *world) takeOver() {
	w.owners = append(w.owners, w.rebuild())
}

func (w *world) rebuild() *owner {
	if w.at == none { // a group commits its start before it reads
		w.at = int64(len(w.source))
	}
	proposed := w.at
	p := newPartition("s", 0, w.bounds(), proposed)
	f := newRebuiltState(p, w.terms)
	for n := max(int(w.mark), 0); n < len(w.log); n++ {
		if w.log[n].visible {
			if err := f.add(w.log[n].in); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	position := f.finish(proposed, int64(len(w.source)), w.now)
	p.open(w.now)
	w.say("rebuilt at %d (group %d, proposed %d), mark %d, log %d: %s", position, w.at, proposed, w.mark, len(w.log), shape(p))
	for o := position; o < int64(len(w.source)); o++ { // the end of an event after the group's offset may be known or lost
		if w.done[o] && w.rng.IntN(2) == 0 {
			delete(w.done, o)
		}
	}
	return &owner{p: p, read: position, epoch: len(w.owners)}
}

func shape(p *partition) string {
	text := ""
	for n, l := range p.states {
		text += fmt.Sprintf("%s: %d chains, %d parked; ", n, l.count, l.parked)
	}
	return text
}

func (w *world) last() *owner { return w.owners[len(w.owners)-1] }

// read gives the next events to an owner.
func (w *world) read(o *owner) {
	if o.read >= int64(len(w.source)) || o.p.closed {
		return
	}
	s := &sourceBatch{next: o.read}
	p := o.p
	for range 1 + w.rng.IntN(5) {
		if s.next < int64(len(w.source)) {
			if n := s.next; !w.done[n] || o != w.last() {
				var key []byte
				if w.source[n] != "" {
					key = []byte(w.source[n])
				}
				e := broker.Incoming{Offset: n, View: broker.View{ID: fmt.Sprint(n), Source: "/x", Type: "t", Key: key}}
				if w.large[n] {
					e.Data = make([]byte, 2000)
				}
				s.events = append(s.events, e)
			}
			s.next++
		}
	}
	o.read = s.next
	if len(s.events) == 0 {
		return
	}
	offsets := make([]int64, len(s.events))
	for i := range s.events {
		offsets[i] = s.events[i].Offset
	}
	s.end = func(i int) {
		if s.frozen {
			w.t.Fatalf("offset %d was ended while a transaction had it", offsets[i])
		}
		if w.last().p == p && !p.closed {
			w.done[offsets[i]] = true
		}
	}
	w.say("%d reads up to %d", o.epoch, o.read)
	p.acceptBatch(s, w.now)
	w.collect(o)
}

func (w *world) collect(o *owner) { o.queue = append(o.queue, o.p.handOut()...) }

// attempt begins an attempt.
func (w *world) attempt(o *owner) {
	if len(o.queue) == 0 {
		return
	}
	at := w.rng.IntN(len(o.queue))
	i := o.queue[at]
	o.queue = slices.Delete(o.queue, at, at+1)
	if !o.p.start(i, w.now) {
		return
	}
	name := i.queue.trigger.name
	w.say("%d starts %s/%d %s", o.epoch, name, i.ref.source, i.replay)
	if l := i.queue.trigger; i.probe {
		w.probes++
	} else if l.open && !l.paused && !i.expired && l.trigger != nil && i.event.unfit == "" {
		w.t.Fatalf("%s/%d is tried although its circuit is open", name, i.ref.source)
	}
	if i.replay != "" {
		w.checkReplayOrder(i)
	} else if i.event.unfit == "" {
		w.checkOrder(name, i.ref.source)
	}
	o.flying = append(o.flying, i)
}

// checkOrder checks the promise that all earlier events of the key have ended.
func (w *world) checkOrder(name string, source int64) {
	if name == "c" || name == "a" && w.fickle || w.source[source] == "" {
		return
	}
	for o := w.first[name]; o < source; o++ {
		if w.source[o] == w.source[source] && matches(name, o) && !w.large[o] && !w.over[name][o] {
			w.t.Fatalf("%s gets offset %d of key %s before %d has ended", name, source, w.source[o], o)
		}
	}
}

// outcome ends an attempt.
func (w *world) outcome(o *owner) {
	if len(o.flying) == 0 {
		return
	}
	at := w.rng.IntN(len(o.flying))
	i := o.flying[at]
	name := i.queue.trigger.name
	how := w.sick[name]
	if how == 3 {
		return
	}
	o.flying = slices.Delete(o.flying, at, at+1)
	failed := how == 2 || how == 1 && w.rng.IntN(2) == 0
	refused := failed && w.rng.IntN(4) == 0
	if failed && !refused && i.tries+1 < w.budget && i.queue.trigger.trigger != nil && !i.expired && i.event.unfit == "" {
		wait := time.Duration(w.rng.IntN(600)) * time.Millisecond
		w.say("%d: %s/%d fails, next in %s", o.epoch, name, i.ref.source, wait)
		o.p.failed(i, Attempt{Error: "no"}, wait, w.now)
	} else {
		w.say("%d: %s/%d %s is over (failed %v)", o.epoch, name, i.ref.source, i.replay, failed)
		if failed {
			w.bury(i)
		}
		if i.replay != "" {
			w.endReplay(i)
		} else {
			w.end(name, i.ref.source)
		}
		o.p.reportEnd(i, w.now)
	}
	w.collect(o)
}

func (w *world) end(name string, source int64) {
	if w.over[name] == nil {
		w.over[name] = map[int64]bool{}
	}
	w.over[name][source] = true
}

type fate int

const (
	commits fate = iota
	aborts
	doubtful // committed, but the outcome is unknown
	torn     // killed: the records are visible and the offsets have not moved
	dies     // killed before the transaction
)

// transact runs a transaction, as the commit loop does.
func (w *world) transact(o *owner, how fate, force bool) {
	tx := o.p.plan(&allowance{records: 12, bytes: 1 << 20}, w.now, force)
	if tx == nil {
		return
	}
	if w.rng.IntN(4) == 0 { // other things happen meanwhile
		for range w.rng.IntN(6) {
			w.outcome(o)
			w.attempt(o)
		}
	}
	if o != w.last() {
		w.say("%d is fenced", o.epoch)
		o.p.markClosed()
		return
	}
	visible := how == commits || how == doubtful || how == torn
	begunAt := w.append(o.p, tx, visible)
	w.say("%d: transaction (fate %d) with %d slabs, %d parks, %d settled, begun %v, up to %d, mark %d", o.epoch, how, len(tx.batches), len(tx.parks), len(tx.settled), tx.begun != nil, tx.next, tx.mark)
	w.renewed += tx.renewed
	if how == commits || how == doubtful {
		w.moveOffsets(tx)
	}
	if visible {
		w.learn(o.p, tx)
	}
	if how == commits {
		o.p.commit(tx, begunAt, int64(len(w.log)), w.now)
		w.collect(o)
		return
	}
	o.p.markClosed()
	w.takeOver()
}

// learn updates the world after records have become visible.
func (w *world) learn(p *partition, tx *partitionWrite) {
	for _, e := range tx.settled {
		delete(w.standing, placeOf(e.trigger.name, e.ref.source, p.replays.name(e.ref.replay)))
	}
	for _, k := range tx.parks {
		name := k.item.queue.trigger.name
		place := placeOf(name, k.item.ref.source, k.record.replay)
		w.learnIntake(&k)
		if !k.item.recorded() && w.standing[place] {
			w.t.Fatalf("%s is parked twice", place)
		}
		w.standing[place] = true
		if k.record.replay != "" {
			continue
		}
		if w.parkedE[name] == nil {
			w.parkedE[name] = map[int64]bool{}
		}
		w.parkedE[name][k.item.ref.source] = true
	}
	if tx.begun == nil {
		return
	}
	for name, from := range tx.begun.From {
		if w.first[name] != from || p.begunAt == none {
			w.first[name] = from
		}
	}
	for name := range w.first {
		if _, still := tx.begun.From[name]; !still {
			delete(w.first, name)
		}
	}
}

func (w *world) moveOffsets(tx *partitionWrite) {
	frozen := int64(none)
	for _, s := range tx.batches {
		if s.frozen {
			for o := max(w.at, 0); o < s.next; o++ {
				w.done[o] = true
			}
			frozen = s.next
		}
	}
	w.at = max(w.at, frozen)
	w.mark = tx.mark
}

// append writes a transaction's records, with the gaps that its markers make.
func (w *world) append(p *partition, tx *partitionWrite, visible bool) (begunAt int64) {
	put := func(v *broker.View) int64 {
		at := int64(len(w.log))
		w.log = append(w.log, logged{&broker.Incoming{View: *v, Offset: at, Time: w.now.time()}, visible})
		return at
	}
	if tx.begun != nil {
		data, _ := json.Marshal(tx.begun)
		begunAt = put(&broker.View{Type: tidemill.TypeParkedBegun, Data: data})
	}
	for n := range tx.parks {
		k := &tx.parks[n]
		k.record.next = tx.next
		v, err := k.record.wrap(&k.item.event.view)
		if err != nil {
			w.t.Fatal(err)
		}
		k.at = put(&v)
	}
	if len(tx.settled) > 0 {
		data, err := p.encodeSettled(tx.settled)
		if err != nil {
			w.t.Fatal(err)
		}
		put(&broker.View{Type: tidemill.TypeParkedSettled, Data: data})
	}
	w.log = append(w.log, logged{})
	return begunAt
}

// commitOffsets moves the group's offset after the events that have ended.
func (w *world) commitOffsets() {
	at := max(w.at, w.last().p.base)
	for at < w.last().read && w.done[at] {
		at++
	}
	if at > w.at && (w.at != none || w.done[at-1]) {
		w.at = at
	}
}

// load reads the records that are due.
func (w *world) load(o *owner) {
	for _, name := range slices.Sorted(maps.Keys(o.p.states)) {
		l := o.p.states[name]
		switch {
		case !l.open || l.paused:
			o.loads = append(o.loads, o.p.load(l, 1+w.rng.IntN(4), w.now)...)
		case w.rng.IntN(3) == 0 && o.p.hasProbe(l, w.now):
			o.loads = append(o.loads, o.p.loadProbe(l))
		default:
			o.loads = append(o.loads, o.p.loadExpired(l, 1+w.rng.IntN(4), w.now)...)
		}
	}
	for len(o.loads) > 0 && w.rng.IntN(5) > 0 {
		d := o.loads[0]
		o.loads = o.loads[1:]
		if w.rng.IntN(10) == 0 {
			o.p.unloaded(d, w.now.add(time.Second), w.now)
			continue
		}
		in := w.log[d.ref.at]
		var r record
		if !in.visible || r.decode(recordOf(&in.in.View)) != nil || r.history() != nil {
			w.t.Fatalf("no record of %s/%d at %d", d.queue.trigger.name, d.ref.source, d.ref.at)
		}
		if r.source != d.ref.source || r.trigger != d.queue.trigger.name {
			w.t.Fatalf("the record at %d is of %s/%d, not of %s/%d", d.ref.at, r.trigger, r.source, d.queue.trigger.name, d.ref.source)
		}
		o.p.loaded(d, &r, &in.in.View, w.now)
	}
	w.renew(o)
	w.refill(o)
	w.collect(o)
}

// refill reads spilled records of an owner, some time after it asked for them.
func (w *world) refill(o *owner) {
	for _, name := range slices.Sorted(maps.Keys(o.p.states)) {
		o.backs = append(o.backs, o.p.refill(o.p.states[name], w.now)...)
	}
	for len(o.backs) > 0 && w.rng.IntN(4) > 0 {
		d := o.backs[0]
		o.backs = o.backs[1:]
		if w.rng.IntN(10) == 0 {
			o.p.notRefilled(d, w.now)
			continue
		}
		in := w.log[d.ref.at]
		r := readRecord(in.in)
		if !in.visible || r.err != nil || r.record.source != d.ref.source || r.record.trigger != d.back.name {
			w.t.Fatalf("no record of %s/%d at %d: %v", d.back.name, d.ref.source, d.ref.at, r.err)
		}
		o.p.refilled(d, &r.record, &r.view, w.now)
		w.refills++
	}
}

// renew reads the pinned records of an owner, some time after they were found.
func (w *world) renew(o *owner) {
	o.pinned = append(o.pinned, o.p.renew(1+w.rng.IntN(4))...)
	for len(o.pinned) > 0 && w.rng.IntN(4) > 0 {
		d := o.pinned[0]
		o.pinned = o.pinned[1:]
		in := w.log[d.ref.at]
		r := readRecord(in.in)
		if !in.visible || r.err != nil || r.record.source != d.ref.source {
			w.t.Fatalf("no record of %s/%d at %d: %v", d.queue.trigger.name, d.ref.source, d.ref.at, r.err)
		}
		o.p.renewed(d, &r.record, &r.view)
	}
}

func (w *world) pick() *owner {
	if n := len(w.owners); n > 1 && w.rng.IntN(4) == 0 {
		return w.owners[w.rng.IntN(n)]
	}
	return w.last()
}

func (w *world) publish() {
	keys := []string{"", "k1", "k2", "k3", "k4"}
	for range 1 + w.rng.IntN(6) {
		w.large[int64(len(w.source))] = w.rng.IntN(40) == 0
		w.source = append(w.source, keys[w.rng.IntN(len(keys))])
	}
}

func (w *world) pass(o *owner) {
	o.p.wake(w.now)
	w.collect(o)
}

func (w *world) step() {
	if w.rng.IntN(20) == 0 {
		w.addReplayCommand()
	}
	if w.rng.IntN(8) == 0 {
		w.takeLetters(w.pick())
	}
	switch n := w.rng.IntN(100); {
	case n < 12:
		w.publish()
	case n < 26:
		w.read(w.pick())
	case n < 46:
		w.attempt(w.pick())
	case n < 66:
		w.outcome(w.pick())
	case n < 76:
		w.now += millis(w.rng.IntN(150))
		if w.rng.IntN(20) == 0 {
			w.now += millis(w.rng.IntN(40_000))
		}
		for _, o := range w.owners {
			w.pass(o)
		}
	case n < 86:
		w.transact(w.pick(), commits, w.rng.IntN(20) == 0)
	case n < 92:
		w.load(w.pick())
	case n < 94:
		w.commitOffsets()
	case n < 95:
		w.transact(w.last(), fate(w.rng.IntN(5)), w.rng.IntN(3) == 0)
	case n < 96:
		if w.rng.IntN(2) == 0 {
			w.last().p.markClosed()
		}
		w.takeOver()
	case n < 98:
		name := string(rune('a' + w.rng.IntN(3)))
		w.sick[name] = w.rng.IntN(4)
		w.say("the subscriber of %s is %d", name, w.sick[name])
	default:
		w.changeConfig()
	}
}

func (w *world) changeConfig() {
	names := []string{"a", "b"}
	if w.rng.IntN(2) == 0 {
		names = append(names, "c")
	}
	for _, n := range names {
		w.paused[n], w.open[n] = w.rng.IntN(4) == 0, w.rng.IntN(4) == 0
	}
	w.configure(names...)
	w.say("config %v, paused %v, open %v", names, w.paused, w.open)
	if w.rng.IntN(4) == 0 {
		w.last().p.retain([]time.Duration{config.Forever, 20 * time.Second, time.Minute}[w.rng.IntN(3)])
	}
	for _, o := range w.owners {
		if w.rng.IntN(3) > 0 || o == w.last() {
			o.p.apply(w.terms, w.now)
			w.collect(o)
		}
	}
}

// settleDown runs until all events have ended.
func (w *world) settleDown() {
	w.sick, w.paused, w.open = map[string]int{}, map[string]bool{}, map[string]bool{}
	w.configure("a", "b", "c")
	o := w.last()
	if o.p.closed {
		w.takeOver()
		o = w.last()
	}
	o.p.apply(w.terms, w.now)
	w.collect(o)
	for round := 0; ; round++ {
		for o.read < int64(len(w.source)) {
			w.read(o)
		}
		for len(o.queue)+len(o.flying) > 0 {
			w.attempt(o)
			w.outcome(o)
		}
		w.pass(o)
		w.takeLetters(o)
		w.transact(o, commits, false)
		w.load(o)
		w.commitOffsets()
		if !o.p.busy() && len(o.queue)+len(o.loads)+len(o.backs) == 0 && w.at == int64(len(w.source)) && w.idle(o) && w.allReplayed(o) {
			return
		}
		if round > 3000 {
			w.t.Fatalf("it does not come to an end: group at %d of %d, read %d; %d slabs, %d aside, flying %d; %s", w.at, len(w.source), o.read, len(o.p.window), len(o.p.backlog), o.p.flying, shape(o.p))
		}
		if next := o.p.deadline(w.now); next <= w.now.add(time.Second) {
			w.now = max(w.now, next)
		} else {
			w.now += 1000
		}
	}
}

func (w *world) idle(o *owner) bool {
	for _, l := range o.p.states {
		if !l.isEmpty() {
			return false
		}
	}
	return true
}

func (w *world) check() {
	for _, name := range []string{"a", "b", "c"} {
		for o := w.first[name]; o < int64(len(w.source)); o++ {
			if matches(name, o) && !w.over[name][o] {
				w.t.Errorf("%s never got offset %d (it begins at %d)", name, o, w.first[name])
			}
		}
		for o := range w.parkedE[name] {
			if !w.over[name][o] {
				w.t.Errorf("%s was parked and never got offset %d", name, o)
			}
		}
	}
	w.checkReplays()
	p := w.last().p
	for name, l := range p.states {
		if l.count != 0 || len(l.byKey) != 0 || l.parked != 0 || len(l.parkedAt) != 0 || len(l.heap) != 0 || !l.isEmpty() {
			w.t.Errorf("something is left of %s: %d chains, %d by key, %d parked, %d ages, %d queued", name, l.count, len(l.byKey), l.parked, len(l.parkedAt), len(l.heap))
		}
	}
	if len(p.kept) != 0 {
		w.t.Errorf("%d items are kept", len(p.kept))
	}
	if p.needed.Len() != 1 || p.events != 0 || p.held != 0 {
		w.t.Errorf("%d records are still needed, %d events and %d bytes in the window", p.needed.Len(), p.events, p.held)
	}
}

func simulate(t *testing.T, seed uint64, trace bool) *world {
	w := newWorld(t, seed)
	w.trace = trace
	for range 600 {
		w.step()
	}
	w.settleDown()
	w.check()
	return w
}

// In any order of faults, an event leaves only delivered or dead-lettered, no event is
// sent before its predecessor has ended, and finally nothing is left.
func TestSimulation(t *testing.T) {
	t.Parallel()
	if *simSeed != 0 {
		simulate(t, *simSeed, true)
		return
	}
	renewed, probes, refills := 0, 0, 0
	for seed := range uint64(*simSeeds) {
		if ok := t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			w := simulate(t, seed+1, false)
			renewed, probes, refills = renewed+w.renewed, probes+w.probes, refills+w.refills
		}); !ok {
			return
		}
	}
	if refills < *simSeeds {
		t.Errorf("only %d spilled records were read back, so the schedules do not test the bound of the index", refills)
	}
	if probes < *simSeeds/10 {
		t.Errorf("only %d probes were sent, so the schedules do not test circuits", probes)
	}
	if renewed < *simSeeds/10 {
		t.Errorf("only %d records were renewed, so the schedules do not test renewals", renewed)
	}
}
