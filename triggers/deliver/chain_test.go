package deliver

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

func TestChainHeap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h queueHeap
	var want []millis
	for range 5000 {
		due := millis(rng.IntN(1000))
		want = append(want, due)
		h.push(&keyQueue{due: due})
	}
	slices.Sort(want)
	for n, due := range want {
		if c := h.pop(); c.due != due || c.at != loading {
			t.Fatalf("the %dth is due at %d, want %d", n, c.due, due)
		}
	}
}

// lonePartition returns a partition with one trigger that gets every event.
func lonePartition(retention time.Duration) *partition {
	tr := &config.Trigger{Name: "t", Delivery: config.Delivery{Ordered: true}}
	b := defaultBounds()
	b.retention = retention
	p := newPartition("s", 0, b, 0)
	newRebuiltState(p, &triggerSettings{plan: &plan{triggers: []string{"t"}, match: func(_ *broker.View, dst []int) []int { return append(dst, 0) }},
		triggers: map[string]*config.Trigger{"t": tr}, paused: func(string) bool { return false }}).finish(0, 0, 0)
	p.open(0)
	return p
}

// The age of the oldest parked item is exact until an item of its minute has ended.
func TestTheOldestItem(t *testing.T) {
	ts := &triggerState{parkedAt: map[uint32]minute{}}
	first, second, later := recordRef{first: 605}, recordRef{first: 655}, recordRef{first: 700}
	for _, step := range []struct {
		what string
		of   recordRef
		n    int
		want millis
	}{
		{"none", recordRef{}, 0, never},
		{"a later one comes first", later, 1, 700_000},
		{"one of the minute before", second, 1, 655_000},
		{"an older one of that minute", first, 1, 605_000},
		{"it has ended", first, -1, 605_000}, // the other one is not older than that
		{"the minute is empty", second, -1, 700_000},
		{"all have ended", later, -1, never},
	} {
		if step.n != 0 {
			ts.tally(step.of, step.n)
		}
		if got := ts.oldest(); got != step.want {
			t.Errorf("%s: %d, want %d", step.what, got, step.want)
		}
	}
}

// quiet runs a partition with a log that never fails, until nothing is left.
type quiet struct {
	p       *partition
	now     millis
	log     []broker.Incoming
	ended   func(i *item)
	fails   func(i *item, now millis) bool
	backoff config.Backoff
}

func (x *quiet) run(t *testing.T, done func() bool) {
	for range 2_000_000 {
		if done() {
			return
		}
		x.send()
		x.write(t)
		x.load(t)
		x.send()
		next := x.p.deadline(x.now)
		for _, l := range x.p.states {
			next = min(next, l.nextLoad())
		}
		x.now = max(x.now, next)
		x.p.wake(x.now)
	}
	t.Fatalf("it does not end: %s", shape(x.p))
}

func (x *quiet) send() {
	for out := x.p.handOut(); len(out) > 0; out = x.p.handOut() {
		for _, i := range out {
			if !x.p.start(i, x.now) {
				continue
			}
			if x.fails(i, x.now) {
				x.p.failed(i, Attempt{Error: "no"}, delay(x.backoff, i.tries+1, 0.5, 0), x.now)
				continue
			}
			x.ended(i)
			x.p.reportEnd(i, x.now)
		}
	}
}

func (x *quiet) write(t *testing.T) {
	w := x.p.plan(newAllowance(), x.now, false)
	if w == nil {
		return
	}
	begunAt := int64(len(x.log))
	if w.begun != nil {
		x.log = append(x.log, broker.Incoming{})
	}
	for n := range w.parks {
		k := &w.parks[n]
		v, err := k.record.wrap(&k.item.event.view)
		if err != nil {
			t.Fatal(err)
		}
		k.at = int64(len(x.log))
		x.log = append(x.log, broker.Incoming{View: v})
	}
	x.p.commit(w, begunAt, int64(len(x.log)), x.now)
}

func (x *quiet) load(t *testing.T) {
	for _, l := range x.p.states {
		for _, d := range x.p.load(l, 64, x.now) {
			r := readRecord(&x.log[d.ref.at])
			if r.err != nil {
				t.Fatal(r.err)
			}
			x.p.loaded(d, &r.record, &r.view, x.now)
		}
	}
}

func (x *quiet) take(n, keys int) {
	for from := 0; from < n; from += 100 {
		s := &sourceBatch{next: int64(from + 100), end: func(int) {}}
		for o := from; o < min(from+100, n); o++ {
			s.events = append(s.events, broker.Incoming{Offset: int64(o), View: broker.View{ID: "x", Source: "/x", Type: "t", Key: []byte{byte(o % keys), byte(o % keys >> 8)}}})
		}
		x.p.acceptBatch(s, x.now)
	}
}

// An event that will soon expire is given to its sender, which writes its dead letter.
func TestParkedEventsExpire(t *testing.T) {
	x := &quiet{p: lonePartition(time.Hour), now: 1_000_000, backoff: config.Backoff{Kind: config.Constant, First: 50 * time.Minute}}
	began, expired := x.now, 0
	x.fails = func(i *item, _ millis) bool { return !i.expired }
	x.ended = func(*item) { expired++ }
	x.take(100, 100)
	x.run(t, func() bool { return expired == 100 })
	if waited := time.Duration(x.now-began) * time.Millisecond; waited < 29*time.Minute || waited > 31*time.Minute {
		t.Errorf("they expired after %s, want half of the hour", waited)
	}
}

// An expired event waits if its dead letter is put off. Otherwise it would be read again at once, without end.
func TestAnExpiredEventIsPutOff(t *testing.T) {
	x := &quiet{p: lonePartition(time.Hour), now: 1_000_000, backoff: config.Backoff{Kind: config.Constant, First: 50 * time.Minute}}
	var tried []millis
	x.fails = func(i *item, _ millis) bool { return !i.expired }
	x.ended = func(i *item) {
		if tried = append(tried, x.now); len(tried) == 1 {
			x.p.postponed(i, lookAgain, x.now)
		}
	}
	x.take(1, 1)
	x.run(t, func() bool { return len(tried) == 2 })
	if waited := time.Duration(tried[1]-tried[0]) * time.Millisecond; waited != lookAgain {
		t.Errorf("it is tried again after %s", waited)
	}
}

// Forty attempts are made at the times of the backoff, over hours.
func TestFortyAttemptsOfAParkedEvent(t *testing.T) {
	x := &quiet{p: lonePartition(config.Forever), now: 1_000_000, backoff: config.Backoff{Kind: config.Exponential, First: time.Second, Cap: 5 * time.Minute}}
	began, ended := x.now, 0
	x.fails = func(i *item, _ millis) bool { return i.tries+1 < 40 }
	x.ended = func(i *item) {
		ended++
		if len(i.past) != 2*keepInHistory {
			t.Errorf("it remembers %d attempts", len(i.past))
		}
	}
	x.take(1, 1)
	x.run(t, func() bool { return ended == 1 })
	want := time.Duration(0)
	for n := 1; n < 40; n++ {
		want += delay(x.backoff, n, 0, 0)
	}
	if took := time.Duration(x.now-began) * time.Millisecond; took < want || took > want+time.Second {
		t.Errorf("it took %s, want %s", took, want)
	}
}

// A trigger unknown to our config does not count as removed until a newer config must have arrived.
func TestANewerConfigIsAwaited(t *testing.T) {
	p := lonePartition(config.Forever)
	p.bounds.skew = time.Minute
	p.begun = triggerStarts{From: map[string]int64{"t": 0, "newer": 0}}
	p.needed.Add(0)
	p.begunAt, p.skewed = 0, millis(0).add(time.Minute)
	p.reckon()
	p.acceptBatch(&sourceBatch{next: 1, end: func(int) {}, events: []broker.Incoming{{View: broker.View{ID: "x"}}}}, 1)
	if w := p.plan(newAllowance(), 1, false); w != nil || len(p.handOut()) > 0 || p.deadline(1) != p.skewed {
		t.Errorf("it went on: %+v", w)
	}
	later := p.skewed
	w := p.plan(newAllowance(), later, false)
	if w == nil || w.begun == nil || len(w.begun.From) != 1 {
		t.Fatalf("it writes %+v", w)
	}
	p.commit(w, 1, 2, later)
	if out := p.handOut(); len(out) != 1 {
		t.Errorf("%d items go on", len(out))
	}
}
