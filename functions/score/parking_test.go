package score

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"tidemill.dev/config"
)

// gate makes fetches of some artifacts wait.
type gate struct {
	mu     sync.Mutex
	closed map[string]chan struct{}
}

func (g *gate) close(artifacts ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = map[string]chan struct{}{}
	}
	for _, a := range artifacts {
		g.closed[a] = make(chan struct{})
	}
}

func (g *gate) open(artifact string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.closed[artifact]; c != nil {
		close(c)
		delete(g.closed, artifact)
	}
}

func (g *gate) openAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a, c := range g.closed {
		close(c)
		delete(g.closed, a)
	}
}

func (g *gate) wait(artifact string) error {
	g.mu.Lock()
	c := g.closed[artifact]
	g.mu.Unlock()
	if c != nil {
		<-c
	}
	return nil
}

// An event that waits too long for its model is parked together with later events of its key.
// They are scored in order once the model is loaded. Other events do not wait.
func TestEventsAreParkedUntilTheirModelIsThere(t *testing.T) {
	for _, atLeastOnce := range []bool{false, true} {
		t.Run(fmt.Sprint("at least once: ", atLeastOnce), func(t *testing.T) {
			w := newWorld(t, 2)
			w.bots(4)
			var g gate
			g.close(artifactOf("m/bot-1", 1), artifactOf("m/bot-3", 1))
			p := &process{w: w, fetch: g.wait}
			conf := scorer()
			conf.Hold, conf.AtLeastOnce = time.Millisecond, atLeastOnce
			t.Cleanup(g.openAll)
			p.start(conf)
			w.publish(batchOf(0, 200, 4)...)
			w.poll("half is scored and half is parked", func() bool {
				at := p.s.Standing()
				return at.Held == 100 && at.Scored == 100 && at.Events == 200
			})
			g.open(artifactOf("m/bot-1", 1))
			w.publish(batchOf(200, 200, 4)...)
			w.poll("what was parked has come back", func() bool {
				at := p.s.Standing()
				return at.Held == 100 && at.Scored == 300
			})
			g.openAll()
			w.publish(batchOf(400, 200, 4)...)
			outputs := w.judge(600)
			w.poll("all of it has been acknowledged", func() bool { at := p.s.Standing(); return at.Held == 0 && at.Scored >= 600 })
			w.swapsAreTold(outputs, 4)
		})
	}
}

// Parked events pass to the next owner, which finds them by the note.
func TestWhatIsParkedOutlivesItsOwner(t *testing.T) {
	w := newWorld(t, 2)
	w.bots(4)
	var g gate
	g.close(artifactOf("m/bot-1", 1), artifactOf("m/bot-2", 1))
	t.Cleanup(g.openAll)
	conf := scorer()
	conf.Hold = time.Millisecond
	p := &process{w: w, fetch: g.wait}
	p.start(conf)
	w.publish(batchOf(0, 200, 4)...)
	w.poll("half is parked", func() bool { return p.s.Standing().Held == 100 && p.s.Standing().Scored == 100 })
	g.open(artifactOf("m/bot-2", 1))
	w.poll("some comes back", func() bool { return p.s.Standing().Held == 50 })
	next := &process{w: w, fetch: g.wait}
	next.start(conf)
	w.publish(batchOf(200, 200, 4)...)
	g.openAll()
	p.close()
	w.publish(batchOf(400, 200, 4)...)
	w.judge(600)
	w.poll("nothing is held", func() bool { return next.s.Standing().Held == 0 })
}

// A scorer that closes does not wait for models: waiting events are parked.
func TestClosingWaitsForNoModel(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	var g gate
	g.close(artifactOf("m/bot-1", 1))
	conf := scorer()
	conf.Hold = patience
	p := &process{w: w, fetch: g.wait}
	p.start(conf)
	w.publish(batchOf(0, 20, 2)...)
	w.waitEvents(streamOut, 10)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		w.must(p.s.Close(t.Context()))
	}()
	<-closed
	g.openAll()
	p.close()
	w.open(scorer())
	w.judge(20)
}

// The scorer also waits for the model that answers instead of others.
func TestEventsWaitForTheModelThatStandsIn(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	var g gate
	g.close(artifactOf("m/bot-0", 1))
	t.Cleanup(g.openAll)
	conf := scorer()
	conf.Hold = time.Millisecond
	conf.NoModel = config.NoModel{Action: config.NoModelUse, Model: "m/bot-0"}
	p := &process{w: w, fetch: g.wait}
	p.start(conf)
	w.publish(message("stranger", 1), message("bot-0", 2), message("stranger", 3))
	w.poll("all is parked", func() bool { return p.s.Standing().Held == 3 })
	g.openAll()
	w.judge(3)
}

// Events that were parked for a model that cannot be loaded are handled like new events.
func TestWhatIsParkedForAModelThatCannotBeLoaded(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	w.registered("m/bot-1", 1) // without files
	w.promote("m/bot-1", 1, 0, 0)
	conf := scorer()
	conf.Hold = time.Millisecond
	p := &process{w: w}
	p.start(conf)
	w.publish(batchOf(0, 20, 2)...)
	w.poll("half of it is a dead letter", func() bool { return p.s.Standing().DeadLettered == 10 && p.s.Standing().Scored == 10 })
	if dead := w.outputs("dead-letters"); len(dead) != 10 {
		t.Errorf("%d dead letters", len(dead))
	}
}
