package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

var pace = Pace{Every: 250 * time.Millisecond, Alive: 15 * time.Second, First: time.Second}

// update is one update of a viewer.
type update struct {
	at      time.Duration
	changed Known
	id      string
}

// viewer collects the updates of a listener in virtual time.
type viewer struct {
	t    *testing.T
	got  chan update
	stop context.CancelFunc
	done chan error
}

func view(t *testing.T, h *Hub, since string, topics ...string) *viewer {
	t.Helper()
	known, err := ParseID(since, topics)
	if err != nil {
		t.Fatal(err)
	}
	l := h.Listen(topics, known)
	ctx, stop := context.WithCancel(t.Context())
	v := &viewer{t, make(chan update, 1000), stop, make(chan error, 1)}
	began := time.Now()
	go func() {
		defer l.Close()
		v.done <- l.Run(ctx, pace, func(changed, known Known) error {
			v.got <- update{time.Since(began), maps.Clone(changed), known.ID()}
			return nil
		})
	}()
	return v
}

// all returns the updates so far.
func (v *viewer) all() (all []update) {
	synctest.Wait()
	for {
		select {
		case u := <-v.got:
			all = append(all, u)
		default:
			return all
		}
	}
}

func (v *viewer) close() {
	v.stop()
	<-v.done
}

func topicsOf(u update) []string { return slices.Sorted(maps.Keys(u.changed)) }

// fact makes the hub read the next fact of a partition.
type facts struct {
	h    *Hub
	next []int64
}

func (f *facts) add(partition int32, topics ...string) {
	f.next[partition]++
	f.h.Fact(partition, f.next[partition], topics)
}

func newFacts(h *Hub, next ...int64) *facts {
	h.Begin(next)
	return &facts{h, slices.Clone(next)}
}

func TestAViewerIsToldWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub()
		f := newFacts(h, 5, 7)
		v := view(t, h, "", Fleet, "model:a", "model:b")
		defer v.close()
		first := v.all()
		if len(first) != 1 || !slices.Equal(topicsOf(first[0]), []string{Fleet, "model:a", "model:b"}) {
			t.Fatalf("it begins with %v", first)
		}
		time.Sleep(time.Second)
		f.add(1, Fleet, Runs, "model:b")
		f.add(0, Runs, "model:c")
		next := v.all()
		if len(next) != 1 || !slices.Equal(topicsOf(next[0]), []string{Fleet, "model:b"}) || next[0].changed["model:b"] == first[0].changed["model:b"] {
			t.Fatalf("then comes %v", next)
		}
		time.Sleep(pace.Alive)
		if idle := v.all(); len(idle) != 1 || len(idle[0].changed) != 0 || idle[0].id != next[0].id {
			t.Errorf("then comes %v", idle)
		}
	})
}

// A hundred changes a second of a topic become four updates a second, and the last change is among them.
func TestChangesOfATopicAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub()
		f := newFacts(h, 0)
		v := view(t, h, "", Fleet)
		defer v.close()
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			f.add(0, Fleet)
		}
		time.Sleep(time.Second)
		all := v.all()
		if len(all) < 40 || len(all) > 42 {
			t.Errorf("10 s had %d updates", len(all))
		}
		for i := 1; i < len(all); i++ {
			if all[i].at-all[i-1].at < pace.Every {
				t.Errorf("%s after %s", all[i].at, all[i-1].at)
			}
		}
		again := view(t, h, "", Fleet)
		defer again.close()
		if last := again.all()[0].changed[Fleet]; all[len(all)-1].changed[Fleet] != last {
			t.Errorf("the last update has %v, want %v", all[len(all)-1], last)
		}
	})
}

// A viewer that was cut off gets exactly what changed meanwhile, from the same gateway or from another one.
func TestAViewerResumes(t *testing.T) {
	for name, other := range map[string]bool{"the same gateway": false, "another gateway": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHub()
				f := newFacts(h, 3, 4)
				stays := view(t, h, "", "key:a", "key:b", Fleet)
				defer stays.close()
				v := view(t, h, "", "key:a", "key:b", Fleet)
				f.add(0, "key:a", Fleet)
				time.Sleep(time.Second)
				all := v.all()
				v.close()
				f.add(1, "key:b", Fleet)
				f.add(1)
				if other { // it begins after the facts, and has no listener yet
					h = NewHub()
					newFacts(h, f.next...)
				}
				back := view(t, h, all[len(all)-1].id, "key:a", "key:b", Fleet)
				defer back.close()
				got := topicsOf(back.all()[0])
				if !slices.Contains(got, "key:b") || !slices.Contains(got, Fleet) {
					t.Errorf("it resumes with %v", got)
				}
				if !other && slices.Contains(got, "key:a") {
					t.Errorf("it resumes with %v, and key:a did not change", got)
				}
			})
		})
	}
}

// The digest must not depend on the order in which a gateway reads the partitions. Otherwise a gateway that has read
// one fact more could give the version that another gateway gave before.
func TestGatewaysAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		versions := map[Version]string{}
		for _, order := range [][]int32{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}} {
			h := NewHub()
			f := newFacts(h, 3, 3)
			l := h.Listen([]string{Fleet}, nil)
			for i, partition := range order {
				f.add(partition, Fleet)
				v := l.take()[Fleet]
				state := fmt.Sprint(f.next)
				if was := versions[v]; was != "" && was != state {
					t.Errorf("version %s is %s and %s", v, was, state)
				}
				versions[v] = state
				if i == 2 && len(versions) > 5 {
					t.Errorf("%d versions of 5 states", len(versions))
				}
			}
		}
	})
}

// A gateway whose first viewer comes late knows less, and must not take its ignorance for an earlier state.
func TestIgnoranceIsNoEarlierState(t *testing.T) {
	a := NewHub()
	fa := newFacts(a, 10, 10)
	la := a.Listen([]string{"key:x"}, nil)
	before := la.take()
	fa.add(0, "key:x") // changes it
	fa.add(1)          // does not
	b := NewHub()
	newFacts(b, fa.next...)
	if got := b.Listen([]string{"key:x"}, before).take(); len(got) != 1 {
		t.Error("the change is lost")
	}
	la.Close()
	fa.add(1, "key:x") // without a listener
	if got := a.Listen([]string{"key:x"}, la.known).take(); len(got) != 1 {
		t.Error("the change without a listener is lost")
	}
}

func TestPolledTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub()
		var looks, content atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.Poll(ctx, 2*time.Second, func(_ context.Context, topic string) Version {
				looks.Add(1)
				return VersionOf(fmt.Append(nil, topic, content.Load()))
			})
		}()
		defer func() { stop(); <-done }()
		time.Sleep(time.Minute)
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks, and nobody listens", n)
		}
		v := view(t, h, "", Pools, Health)
		if first := v.all(); len(first) != 1 || len(first[0].changed) != 2 || first[0].at != 0 {
			t.Fatalf("it begins with %v", first)
		}
		time.Sleep(10 * time.Second)
		if idle := v.all(); len(idle) != 0 {
			t.Errorf("nothing changes, and it gets %v", idle)
		}
		content.Add(1)
		time.Sleep(3 * time.Second)
		got := v.all()
		if len(got) == 0 || len(got) > 2 { // the two topics are compared one after the other
			t.Errorf("it gets %v", got)
		}
		v.close()
		was := looks.Load()
		time.Sleep(time.Minute)
		if n := looks.Load() - was; n != 0 || h.Topics() != 0 {
			t.Errorf("%d looks after the last viewer, %d topics", n, h.Topics())
		}
	})
}

// A run changes with its facts, and with its progress, which is polled.
func TestARunHasFactsAndProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub()
		f := newFacts(h, 5)
		var progress atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.Poll(ctx, 2*time.Second, func(context.Context, string) Version { return VersionOf(fmt.Append(nil, progress.Load())) })
		}()
		defer func() { stop(); <-done }()
		v := view(t, h, "", "run:a")
		defer v.close()
		first := v.all()
		if len(first) != 1 || len(first[0].changed) != 1 {
			t.Fatalf("it begins with %v", first)
		}
		f.add(0, "run:a")
		time.Sleep(time.Second)
		if got := v.all(); len(got) != 1 {
			t.Errorf("after a fact comes %v", got)
		}
		progress.Add(1)
		time.Sleep(3 * time.Second)
		if got := v.all(); len(got) != 1 {
			t.Errorf("after a step comes %v", got)
		}
	})
}

// A reader that takes nothing does not delay the others, and gets each topic once when it takes again.
func TestASlowReaderHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub()
		f := newFacts(h, 0)
		slow, takes := h.Listen([]string{Fleet, "model:a"}, nil), make(chan struct{})
		var got []Known
		done := make(chan error, 1)
		ctx, stop := context.WithCancelCause(t.Context())
		go func() {
			done <- slow.Run(ctx, pace, func(changed, _ Known) error {
				<-takes
				got = append(got, maps.Clone(changed))
				return nil
			})
		}()
		v := view(t, h, "", Fleet)
		defer v.close()
		for range 400 {
			time.Sleep(25 * time.Millisecond)
			f.add(0, Fleet, "model:a")
		}
		if n := len(v.all()); n < 39 {
			t.Errorf("the other got %d updates", n)
		}
		close(takes)
		time.Sleep(time.Second)
		synctest.Wait()
		reason := errors.New("over")
		stop(reason)
		if err := <-done; !errors.Is(err, reason) {
			t.Errorf("it ends with %v", err)
		}
		if len(got) != 2 || len(got[1]) != 2 {
			t.Errorf("it got %v", got)
		}
		slow.Close()
	})
}

func TestLostFactsChangeEverything(t *testing.T) {
	h := NewHub()
	newFacts(h, 5, 5)
	l := h.Listen([]string{Fleet, "model:a", Pools, Commands}, nil)
	l.take()
	h.Lost(1, 9)
	if got := slices.Sorted(maps.Keys(l.take())); !slices.Equal(got, []string{Fleet, "model:a"}) {
		t.Errorf("changed: %v", got)
	}
}

func TestTopicsOfFacts(t *testing.T) {
	attribute := func(all ...string) (of []broker.Attribute) {
		for i := 0; i < len(all); i += 2 {
			of = append(of, broker.Attribute{Name: all[i], Value: all[i+1]})
		}
		return of
	}
	for name, c := range map[string]struct {
		v    broker.View
		want []string
	}{
		"a run": {broker.View{Type: tidemill.TypeRunStarted, Subject: "k", Extensions: attribute(tidemill.AttrRecipe, "r", tidemill.AttrRun, "1")},
			[]string{Fleet, "fleet:r", "run:1", "key:k", Runs}},
		"a run without a key": {broker.View{Type: tidemill.TypeRunStarted, Subject: "r", Extensions: attribute(tidemill.AttrRecipe, "r", tidemill.AttrRun, "1")},
			[]string{Fleet, "fleet:r", "run:1", Runs}},
		"a version": {broker.View{Type: tidemill.TypeModelRegistered, Subject: "k", Extensions: attribute(tidemill.AttrRecipe, "r", tidemill.AttrRun, "1", tidemill.AttrModel, "r/k")},
			[]string{Fleet, "fleet:r", "run:1", "model:r/k", "key:k"}},
		"a decision": {broker.View{Type: tidemill.TypeModelPromoted, Subject: "k", Extensions: attribute(tidemill.AttrModel, "r/k")},
			[]string{Fleet, "model:r/k", "key:k", Approvals}},
		"the end of a key": {broker.View{Type: tidemill.TypeKeyForgetting, Subject: "k"}, []string{Fleet, "key:k"}},
	} {
		if got := OfFact(&c.v); !slices.Equal(got, c.want) {
			t.Errorf("%s changes %v, want %v", name, got, c.want)
		}
		for _, topic := range c.want {
			if err := Check(topic); err != nil {
				t.Error(err)
			}
		}
	}
	for _, wrong := range []string{"", "fleets", "run:", "key", "pools:a"} {
		if Check(wrong) == nil {
			t.Errorf("%q is a topic", wrong)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(Known{Fleet: VersionOf(nil), "run:a": versionOf(7)}.ID())
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, id string) {
		known, err := ParseID(id, []string{Fleet, "run:a"})
		if err != nil {
			return
		}
		if again, err := ParseID(known.ID(), []string{Fleet, "run:a"}); err != nil || !maps.Equal(again, known) {
			t.Errorf("%v became %v, %v", known, again, err)
		}
	})
}

// BenchmarkFact is the cost of a fact with 50 viewers, of whom each listens to ten topics.
func BenchmarkFact(b *testing.B) {
	h := NewHub()
	h.Begin(make([]int64, 16))
	for i := range 50 {
		topics := []string{Fleet, Runs, "fleet:r", Approvals}
		for j := range 6 {
			topics = append(topics, fmt.Sprintf("key:k%d", i*6+j))
		}
		h.Listen(topics, nil)
	}
	v := broker.View{Type: tidemill.TypeRunStarted, Subject: "k7", Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: "r"}, {Name: tidemill.AttrRun, Value: "1"}}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.Fact(int32(i%16), int64(i), OfFact(&v))
	}
}
