package score

import (
	"testing"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
)

// forget makes Kafka forget the scorer's group.
func (w *world) forget() {
	w.Helper()
	client := kafka.Client{Addr: kafka.TCP(w.kafka)}
	name := w.names.Group(Group("s"))
	w.poll("the group is deleted", func() bool {
		res, err := client.DeleteGroups(w.Context(), &kafka.DeleteGroupsRequest{GroupIDs: []string{name}})
		return err == nil && res.Errors[name] == nil
	})
}

// refreshGroups runs one pass of the controller's refresher of groups.
func (w *world) refreshGroups() {
	w.Helper()
	k, err := w.b.GroupRefresher(w.Context(), 0)
	w.must(err)
	w.must(k.Pass(w.Context()))
	w.must(k.Close(w.Context()))
}

// wantOnce waits until n events are scored, and fails if one is scored twice.
func (w *world) wantOnce(n int, p *process) {
	w.Helper()
	w.waitEvents(streamOut, n)
	w.poll("the scorer has read all", func() bool {
		lag, err := p.s.session.lag(w.Context())
		w.must(err)
		return lag == 0
	})
	p.close()
	times := map[string]int{}
	for _, o := range w.outputs(streamOut) {
		times[o.ID]++
	}
	twice := 0
	for _, n := range times {
		if n > 1 {
			twice++
		}
	}
	if len(times) != n || twice > 0 {
		w.Errorf("%d events are scored, %d of them more than once; want %d, none twice", len(times), twice, n)
	}
}

// testForgotten scores 20 events, lets Kafka forget the scorer, and scores five more.
func testForgotten(w *world, latest bool, forget func()) {
	c := scorer()
	c.Latest = latest
	w.bots(2)
	p := w.open(c)
	w.poll("the scorer reads", func() bool { return len(p.s.session.c.Positions()) == w.partitions })
	w.publish(batchOf(0, 20, 2)...)
	w.wantOnce(20, p)
	w.refreshGroups()
	forget()
	w.publish(batchOf(20, 5, 2)...)
	w.wantOnce(25, w.open(c))
	if letters := w.outputs(tidemill.StreamDeadLetters); len(letters) > 0 {
		w.Errorf("there are %d dead letters", len(letters))
	}
}

// A scorer that had no process for longer than Kafka keeps offsets continues where it was. It scores
// no event twice and misses none, wherever it starts by its config.
func TestAForgottenScorerContinues(t *testing.T) {
	t.Parallel()
	for name, latest := range map[string]bool{"earliest": false, "latest": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			testForgotten(w, latest, w.forget)
		})
	}
}

// If no controller ran after the scorer had left, its last record is older than its last commit. The
// scorer finds its later outputs after the place that the record's note names.
func TestAForgottenScorerFindsItsOutputs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.bots(2)
	p := w.open(scorer())
	w.publish(batchOf(0, 20, 2)...)
	w.waitEvents(streamOut, 20)
	w.refreshGroups()
	w.publish(batchOf(20, 20, 2)...)
	w.wantOnce(40, p)
	w.forget()
	w.publish(batchOf(40, 5, 2)...)
	w.wantOnce(45, w.open(scorer()))
	if letters := w.outputs(tidemill.StreamDeadLetters); len(letters) != 1 {
		t.Errorf("there are %d dead letters, want one that names the offsets", len(letters))
	}
}
