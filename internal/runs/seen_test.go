package runs

import (
	"strings"
	"sync"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// facts are those of a type that are on the log.
func (w *world) facts(typ string) (ids []string) {
	w.Helper()
	b := w.dial()
	from, err := b.Places(w.ctx(), tidemill.StreamFacts, broker.Earliest())
	w.must(err)
	_, err = b.ReadBack(w.ctx(), from, func(e *broker.Incoming) {
		if e.Type == typ {
			ids = append(ids, strings.Clone(e.ID))
		}
	})
	w.must(err)
	return ids
}

func TestWhatKeepersSeeIsSaidOnce(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f, g := w.foreman(nil), w.foreman(nil)
	id := w.begun(f, wish("intent", "bot-42", "1")).Run
	run := w.run(f, id)
	waits := tidemill.RunSeen{Pending: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"}
	var both sync.WaitGroup
	for _, keeper := range []*Foreman{f, g} {
		both.Go(func() {
			if err := keeper.Seen(w.ctx(), run, 1, waits); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if got := w.run(f, id).Attempt().Pending; got != waits.Pending {
		t.Errorf("it is pending for %q", got)
	}
	w.must(f.Seen(w.ctx(), w.run(f, id), 1, waits))
	ids := w.facts(tidemill.TypeRunSeen)
	for _, other := range ids[1:] {
		if other != ids[0] {
			t.Errorf("two keepers say %v", ids)
		}
	}
	if len(ids) > 2 {
		t.Errorf("it is said %d times", len(ids))
	}
	w.must(g.Seen(w.ctx(), w.run(f, id), 1, tidemill.RunSeen{Where: tidemill.Where{Node: "gpu-1", Image: "sha256:aa"}}))
	w.must(g.Seen(w.ctx(), w.run(f, id), 2, waits))
	if a := w.run(f, id).Attempt(); a.Pending != "" || a.Node != "gpu-1" || a.Image != "sha256:aa" {
		t.Errorf("the attempt is %+v", a)
	}
	w.finish(f, w.launch.launched()[0], succeeded)
	said := len(w.facts(tidemill.TypeRunSeen))
	w.must(f.Seen(w.ctx(), w.run(f, id), 1, waits))
	if after := len(w.facts(tidemill.TypeRunSeen)); after != said {
		t.Errorf("%d facts of what was seen were %d before it was said of a run that has ended", after, said)
	}
}
