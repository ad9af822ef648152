package warmpods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
)

// A pod waits at one gateway. A launcher next to another gateway can give the pod one attempt.
func TestAPodIsGivenAnAttempt(t *testing.T) {
	w := newWorld(t)
	got := w.startWait(t.Context(), w.one, pod("a"), long)
	p := w.takePod(w.two, "s")
	if p.Name != "a" || p.Attempt != "a-did-1" || p.Pool != "gpu" || p.GPUs != 2 {
		t.Errorf("%+v", p)
	}
	w.checkNone(w.one, "s")
	w.must(w.two.Give(t.Context(), p, offer("run2-1")))
	if h := w.hears(got); !h.ok || h.Offer != offer("run2-1") {
		t.Errorf("%+v", h)
	}
	w.checkNone(w.one, "s")
}

func TestOthersPodsAreNotTaken(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := w.startWait(ctx, w.one, pod("a"), long)
	w.waitUntil("it waits", func() bool { is, err := w.two.Idle(t.Context(), "gpu"); w.must(err); return is.Pods == 1 })
	w.checkNone(w.two, "another")
	w.checkNone(w.two, "") // a plan without a shape takes no pod
	if ok, err := w.two.Dismiss(t.Context(), "cpu"); ok || err != nil {
		t.Error(ok, err)
	}
	cancel()
	if h := w.hears(got); h.ok {
		t.Errorf("%+v", h)
	}
}

// A pod that lost the answer repeats the request and gets the same offer. After the offered
// attempt, the pod does not get that offer again.
func TestWhatWasGivenIsHeardAgain(t *testing.T) {
	w := newWorld(t)
	got := w.startWait(t.Context(), w.one, pod("a"), long)
	w.must(w.two.Give(t.Context(), w.takePod(w.two, "s"), offer("run2-1")))
	w.hears(got)
	if h := w.hears(w.startWait(t.Context(), w.two, pod("a"), long)); !h.ok || h.Offer != offer("run2-1") {
		t.Errorf("%+v", h)
	}
	after := pod("a")
	after.Attempt = "run2-1"
	got = w.startWait(t.Context(), w.two, after, long)
	if p := w.takePod(w.one, "s"); p.Attempt != "run2-1" {
		t.Errorf("%+v", p)
	}
	select {
	case h := <-got:
		t.Errorf("it heard %+v again", h)
	default:
	}
}

// After an attempt has reported to a gateway, a request with the token of the pod's previous
// attempt never gets the offer of that attempt.
func TestWhatHasBegunIsToldToNobody(t *testing.T) {
	w := newWorld(t)
	got := w.startWait(t.Context(), w.one, pod("a"), long)
	p := w.takePod(w.two, "s")
	w.must(w.two.Give(t.Context(), p, offer("run2-1")))
	w.hears(got)
	w.must(w.one.Begun(t.Context(), "run7-1")) // another pod's attempt
	if h := w.hears(w.startWait(t.Context(), w.two, pod("a"), long)); h.Offer != offer("run2-1") {
		t.Errorf("%+v", h)
	}
	w.must(w.one.Begun(t.Context(), "run2-1"))
	w.must(w.one.Begun(t.Context(), "run2-1")) // the answer to the first call was lost
	for range 2 {
		w.server.FastForward(offeredFor)
		if h := w.hears(w.startWait(t.Context(), w.two, pod("a"), long)); !h.ok || h.Offer != (Offer{}) {
			t.Errorf("it hears %+v", h)
		}
		w.checkNone(w.one, "s") // the pod does not wait
		if is, err := w.one.Idle(t.Context(), "gpu"); err != nil || is.Pods != 0 {
			t.Errorf("%+v, %v", is, err)
		}
		if err := w.two.Give(t.Context(), p, offer("run3-1")); !errors.Is(err, ErrTaken) {
			t.Errorf("it is given another: %v", err)
		}
		if _, ok, err := (&waitingPod{b: w.one, pod: pod("a"), from: time.Now()}).leave(t.Context()); ok || err != nil {
			t.Errorf("it leaves with one, %v", err)
		}
	}
	after := pod("a") // the pod itself, after run2-1
	after.Attempt = "run2-1"
	got = w.startWait(t.Context(), w.one, after, long)
	w.must(w.one.Give(t.Context(), w.takePod(w.two, "s"), offer("run4-1")))
	if h := w.hears(got); h.Offer != offer("run4-1") {
		t.Errorf("%+v", h)
	}
}

// If a flush of Redis deletes the record that an attempt has begun, the pod is still told to exit.
func TestBegunBehindAFlush(t *testing.T) {
	w := newWorld(t)
	w.must(w.one.Begun(t.Context(), "run2-1"))
	got := w.startWait(t.Context(), w.one, pod("a"), long)
	p := w.takePod(w.two, "s")
	w.server.FlushAll()
	w.must(w.two.Give(t.Context(), p, offer("run2-1")))
	w.hears(got)
	w.must(w.one.Begun(t.Context(), "run2-1"))
	if h := w.hears(w.startWait(t.Context(), w.two, pod("a"), long)); !h.ok || h.Offer != (Offer{}) {
		t.Errorf("it hears %+v", h)
	}
}

// A pod reports its own name. A pod with a false name gets no offer of another pod.
func TestAPodThatLiesAboutItsName(t *testing.T) {
	w := newWorld(t)
	liar := Pod{Name: "a", Attempt: "liar-1", Pool: "gpu", Shape: "another"}
	lie := func() {
		if o, ok := (&waitingPod{b: w.one, pod: liar, from: time.Now()}).poll(t.Context()); ok {
			t.Fatalf("it hears %+v", o)
		}
	}
	honest := &waitingPod{b: w.two, pod: pod("a"), from: time.Now()}
	honest.poll(t.Context())
	lie()
	p := w.takePod(w.one, "s")
	if p.Name != "a" || p.Attempt != "a-did-1" {
		t.Errorf("took %+v", p)
	}
	w.must(w.one.Give(t.Context(), p, offer("run2-1")))
	lie()
	if o, ok := honest.poll(t.Context()); !ok || o != offer("run2-1") {
		t.Errorf("it hears %+v, %t", o, ok)
	}
}

// No attempt is given to a pod whose request was cancelled or has ended.
func TestWhoWaitsNoMoreIsNotTaken(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := w.startWait(ctx, w.one, pod("a"), long)
	w.waitUntil("it waits", func() bool { is, err := w.two.Idle(t.Context(), "gpu"); w.must(err); return is.Pods == 1 })
	cancel()
	if h := w.hears(got); h.ok {
		t.Errorf("%+v", h)
	}
	w.checkNone(w.two, "s")
	if h := w.hears(w.startWait(t.Context(), w.one, pod("b"), time.Millisecond)); h.ok {
		t.Errorf("%+v", h)
	}
	w.checkNone(w.two, "s")
}

// If a pod is killed together with its gateway, its entry expires.
func TestWhatNobodyWritesFades(t *testing.T) {
	w := newWorld(t)
	if _, ok := (&waitingPod{b: w.one, pod: pod("a"), from: time.Now()}).poll(t.Context()); ok {
		t.Fatal("it has an offer")
	}
	w.server.FastForward(fresh)
	w.checkNone(w.two, "s")
}

// If a launcher takes a pod and then dies, the pod waits again. That launcher can no longer give it
// an attempt.
func TestATakerThatDies(t *testing.T) {
	w := newWorld(t)
	got := w.startWait(t.Context(), w.one, pod("a"), long)
	first := w.takePod(w.two, "s")
	w.checkNone(w.two, "s")
	w.server.FastForward(takenFor)
	second := w.takePod(w.two, "s")
	if err := w.two.Give(t.Context(), first, offer("late-1")); !errors.Is(err, ErrTaken) {
		t.Errorf("the first: %v", err)
	}
	w.must(w.two.Give(t.Context(), second, offer("run2-1")))
	w.must(w.two.Give(t.Context(), second, offer("run2-1"))) // the answer to the first call was lost
	if err := w.two.Give(t.Context(), first, offer("late-1")); !errors.Is(err, ErrTaken) {
		t.Errorf("the first: %v", err)
	}
	if h := w.hears(got); h.Offer != offer("run2-1") {
		t.Errorf("%+v", h)
	}
}

// A pod that was taken just before its wait ends waits for its offer.
func TestTakenInTheLastMoment(t *testing.T) {
	w := newWorld(t)
	one := &waitingPod{b: w.one, pod: pod("a"), from: time.Now()}
	if _, ok := one.poll(t.Context()); ok {
		t.Fatal("it has an offer")
	}
	p := w.takePod(w.two, "s")
	got := make(chan waitResult, 1)
	go func() {
		o, ok, err := one.leave(t.Context())
		got <- waitResult{o, ok, err}
	}()
	w.must(w.two.Give(t.Context(), p, offer("run2-1")))
	if h := w.hears(got); !h.ok || h.Offer != offer("run2-1") {
		t.Errorf("%+v", h)
	}
}

func TestDismiss(t *testing.T) {
	w := newWorld(t)
	a, b := w.startWait(t.Context(), w.one, pod("a"), long), w.startWait(t.Context(), w.two, pod("b"), long)
	w.waitUntil("both wait", func() bool { is, err := w.two.Idle(t.Context(), "gpu"); w.must(err); return is.Pods == 2 })
	for range 2 {
		if ok, err := w.two.Dismiss(t.Context(), "gpu"); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if ok, err := w.two.Dismiss(t.Context(), "gpu"); ok || err != nil {
		t.Error(ok, err)
	}
	for _, got := range []<-chan waitResult{a, b} {
		if h := w.hears(got); !h.ok || h.Offer != (Offer{}) {
			t.Errorf("%+v", h)
		}
	}
}

func TestIdleGPUsAreCounted(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b"} {
		one := &waitingPod{b: w.one, pod: pod(name), from: time.Now().Add(-3 * time.Second)}
		one.poll(t.Context())
		if one.err != nil {
			t.Fatal(one.err)
		}
		one.from = time.Now().Add(-2 * time.Second)
		if _, _, err := one.leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all, err := w.two.IdleOf(t.Context(), []string{"gpu", "cpu"})
	w.must(err)
	if is := all["gpu"]; is.Pods != 0 || is.GPUSeconds < 20 || is.GPUSeconds > 20+60 || all["cpu"] != (Idle{}) {
		t.Errorf("%+v", all)
	}
}

// Pods wait, are taken and given attempts while Redis is flushed again and again. No pod gets the
// offer of another pod, and every waiting pod finally gets an offer.
func TestFlushedAgainAndAgain(t *testing.T) {
	w := newWorld(t)
	const pods = 8
	var (
		mu    sync.Mutex
		given = map[string][]Offer{} // by pod
		all   sync.WaitGroup
	)
	waits := map[string]<-chan waitResult{}
	for i := range pods {
		name := fmt.Sprint("pod", i)
		waits[name] = w.startWait(t.Context(), []*Book{w.one, w.two}[i%2], pod(name), long)
	}
	done := make(chan struct{})
	for taker := range 4 {
		all.Go(func() {
			b := []*Book{w.one, w.two}[taker%2]
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				p, ok, err := b.Take(t.Context(), "s")
				if err != nil || !ok {
					continue
				}
				o := offer(fmt.Sprintf("run%dx%d-1", taker, n))
				switch err := b.Give(t.Context(), p, o); {
				case err == nil:
					mu.Lock()
					given[p.Name] = append(given[p.Name], o)
					mu.Unlock()
				case !errors.Is(err, ErrTaken):
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for range 500 { // bounded: a pod may have too little time between two flushes
			select {
			case <-done:
				return
			default:
				w.server.FlushAll()
			}
		}
	})
	said := map[string]Offer{}
	for name, got := range waits {
		h := w.hears(got)
		if !h.ok {
			t.Errorf("%s was given nothing", name)
		}
		said[name] = h.Offer
	}
	close(done)
	all.Wait()
	seen := map[Offer]string{}
	for name, o := range said {
		if other := seen[o]; other != "" {
			t.Errorf("%s and %s were both told of %s", name, other, o.Attempt)
		}
		seen[o] = name
		found := false
		for _, g := range given[name] {
			found = found || g == o
		}
		if !found {
			t.Errorf("%s was told of %s, and was given %v", name, o.Attempt, given[name])
		}
	}
}

func TestShape(t *testing.T) {
	user := int64(0)
	base := tidemill.Plan{Team: "a", Image: "i:1", Pool: "gpu", CPU: 1, Memory: 2, GPUs: 1, Grace: time.Second, Secrets: map[string]string{"A": "b/c"}}
	same := base
	same.Command, same.Env, same.Priority, same.Deadline, same.Inputs = []string{"x"}, map[string]string{"E": "1"}, 3, time.Hour, []tidemill.Input{{Name: "n"}}
	if s := Shape(base); s == "" || s != Shape(same) {
		t.Errorf("%q and %q", s, Shape(same))
	}
	for what, change := range map[string]func(*tidemill.Plan){
		"team": func(p *tidemill.Plan) { p.Team = "b" }, "image": func(p *tidemill.Plan) { p.Image = "i:2" }, "pool": func(p *tidemill.Plan) { p.Pool = "cpu" },
		"CPU": func(p *tidemill.Plan) { p.CPU = 2 }, "memory": func(p *tidemill.Plan) { p.Memory = 3 }, "GPUs": func(p *tidemill.Plan) { p.GPUs = 2 },
		"grace": func(p *tidemill.Plan) { p.Grace = time.Minute }, "secrets": func(p *tidemill.Plan) { p.Secrets = nil },
		"user":    func(p *tidemill.Plan) { p.Inside.User = &user },
		"volumes": func(p *tidemill.Plan) { p.Inside.Volumes = []tidemill.Volume{{Claim: "c", At: "/c"}} },
		"shm":     func(p *tidemill.Plan) { p.Inside.Shm = 1 },
		"disk":    func(p *tidemill.Plan) { p.Inside.Disk = 1 },
	} {
		other := base
		if change(&other); Shape(other) == Shape(base) || Shape(other) == "" {
			t.Errorf("another %s has the same shape, or none: %q", what, Shape(other))
		}
	}
	for what, change := range map[string]func(*tidemill.Plan){
		"workers": func(p *tidemill.Plan) { p.Workers = 2 }, "servers": func(p *tidemill.Plan) { p.Servers = &tidemill.Servers{Count: 1} },
		"a folder": func(p *tidemill.Plan) { p.Image, p.Dir = "", "/d" },
	} {
		other := base
		if change(&other); Shape(other) != "" {
			t.Errorf("%s can follow another in its pod", what)
		}
	}
}
