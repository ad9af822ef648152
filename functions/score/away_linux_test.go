package score

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/sandbox/sandboxtest"
)

// TestBeTheChild is ONNX Runtime's process in tests that end it.
func TestBeTheChild(t *testing.T) { sandboxtest.Be(t) }

// ONNX Runtime's process is killed again and again while a scorer loads and runs models. No event is
// lost or scored twice, and no version is found unfit.
func TestAProcessThatIsKilledUnderAScorer(t *testing.T) {
	w := newWorld(t, 2)
	w.bots(8)
	child := sandboxtest.New(t)
	conf := scorer()
	conf.Engine = infer.EngineONNXRuntime
	p := &process{w: w, child: child.Command(), unloadable: func(model string, version, _ int, err error) {
		t.Errorf("model %s, version %d is unfit: %v", model, version, err)
	}}
	p.start(conf)
	const rounds, each = 6, 400
	for round := range rounds {
		w.publish(batchOf(round*each, each, 8)...)
		model := fmt.Sprint("m/bot-", round)
		w.register(model, 2)
		w.promote(model, 2, 1, 1)
		w.poll("a child is killed", child.Kill)
		w.poll("some events are scored after it", func() bool { return int(p.s.Standing().Scored) > round*each })
	}
	w.judge(rounds * each)
	if dead := w.outputs(tidemill.StreamDeadLetters); len(dead) != 0 {
		t.Errorf("%d dead letters", len(dead))
	}
}

// openShared opens a scorer with one model for all keys, which runs in a child.
func (w *world) openShared(child *sandboxtest.Child) *process {
	w.Helper()
	conf := scorer()
	conf.Engine, conf.Model, conf.Hold = infer.EngineONNXRuntime, "m/all", time.Millisecond
	p := &process{w: w, child: child.Command()}
	p.start(conf)
	return p
}

// deadly returns an event that ends the child.
func deadly(key string, n int) broker.View {
	v := message(key, n)
	v.Data = fmt.Appendf(nil, `{"x":[%d,0,0,0]}`, int(sandboxtest.Deadly))
	return v
}

// The attack: three events of one key buried the events of all keys of the model for ten minutes.
func TestEventsWaitWhileTheirModelIsRefused(t *testing.T) {
	w := newWorld(t, 1)
	w.first("m/all")
	p := w.openShared(sandboxtest.New(t))
	const bad = 3
	for n := range bad {
		w.publish(deadly("mallory", n))
		w.waitEvents(tidemill.StreamDeadLetters, n+1)
	}
	w.publish(batchOf(0, 40, 4)...)
	p.parks(40)
	w.poll("it is told why events wait", func() bool { return strings.Contains(p.s.Standing().LastError, "lost because of this model") })
	p.close()
	p = w.openShared(sandboxtest.New(t)) // this process has seen no fault
	w.poll("all others are scored", func() bool { return p.s.Standing().Scored == 40 })
	p.parks(0)
	if dead, all := w.outputs(tidemill.StreamDeadLetters), w.outputs(streamOut); len(dead) != bad || len(all) != 40 {
		t.Errorf("%d dead letters, %d outputs", len(dead), len(all))
	}
}

// Events wait while ONNX Runtime's process cannot be started.
func TestEventsWaitForTheProcess(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(3)
	child := sandboxtest.New(t)
	conf := scorer()
	conf.Engine, conf.Hold = infer.EngineONNXRuntime, time.Millisecond
	p := &process{w: w, child: child.Command()}
	p.start(conf)
	w.publish(batchOf(0, 30, 3)...)
	w.judge(30)
	child.Limit(sandboxtest.Starts, 0)
	w.poll("the child is killed", child.Kill)
	w.publish(batchOf(30, 30, 3)...)
	w.poll("events wait", func() bool { return p.s.Standing().Held > 0 })
	w.publish(batchOf(60, 30, 3)...)
	child.Limit(sandboxtest.Starts, -1)
	w.judge(90)
	p.parks(0)
	if dead := w.outputs(tidemill.StreamDeadLetters); len(dead) != 0 {
		t.Errorf("%d dead letters", len(dead))
	}
}

// Events wait together with those after them of the same model, so that the order of each key is kept.
func TestLaterEventsOfAModelThatIsAwayWaitToo(t *testing.T) {
	b := &batch{groups: []group{{target: &target{}, n: 5}, {target: &target{}, n: 1}}}
	for _, v := range []verdict{scored, waiting, scored, dead, scored, scored} {
		b.items = append(b.items, item{verdict: v})
		b.order = append(b.order, int32(len(b.order)))
	}
	b.groups[1].first = 5
	if late := b.firstWaiting(&b.groups[0]); !slices.Equal(late, []int32{1, 2, 4}) {
		t.Errorf("%v wait", late)
	}
	if late := b.firstWaiting(&b.groups[1]); len(late) != 0 {
		t.Errorf("of another model %v wait", late)
	}
}
