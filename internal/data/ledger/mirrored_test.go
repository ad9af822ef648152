package ledger_test

import (
	"fmt"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// A copy of the log tells the same, although each fact has another offset there: MirrorMaker, a sink
// and a restore do not keep offsets.
func TestMirrored(t *testing.T) {
	t.Parallel()
	from := newWorld(t, 2)
	l, s := from.open(), &script{}
	const keys, each = 20, 3
	for i := range keys {
		for n := range each {
			v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), fmt.Sprint("c", n), nil)
			m := from.add(l, v)
			m = from.add(l, s.start(m.Waiting, "gpu"))
			from.add(l, s.finish(m.Live, tidemill.OutcomeSucceeded))
		}
	}
	to := newWorld(t, 2)
	for i := range 8 { // like a gap or a marker in each partition
		_, err := to.produce.Publish(t.Context(), tidemill.StreamFacts, s.view("other.type", "intent", fmt.Sprint("x", i), "", 1))
		must(t, err)
	}
	copyFacts(t, from, to)
	want, got := succeeded(t, l), succeeded(t, to.open())
	if len(want) != keys*each || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d runs have succeeded, and %d on the copy", len(want), len(got))
	}
}

// copyFacts copies all facts to another Kafka.
func copyFacts(t *testing.T, from, to *world) {
	t.Helper()
	ends, err := from.broker.Ends(t.Context(), tidemill.StreamFacts)
	must(t, err)
	for _, end := range ends {
		for at := (broker.Position{Stream: tidemill.StreamFacts, Partition: end.Partition}); at.Offset < end.Offset; {
			var all []broker.View
			at.Offset, err = from.broker.Read(t.Context(), at, 1<<20, func(e *broker.Incoming) bool { all = append(all, e.View.Clone()); return true })
			must(t, err)
			for i := range all {
				_, err := to.produce.Publish(t.Context(), tidemill.StreamFacts, &all[i])
				must(t, err)
			}
		}
	}
}

// succeeded returns the numbers of the runs that have succeeded, by id.
func succeeded(t *testing.T, l *ledger.Ledger) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	page, err := l.Runs(t.Context(), ledger.Query{States: []tidemill.RunState{tidemill.RunSucceeded}, Limit: 1000})
	must(t, err)
	for _, r := range page.Runs {
		all[r.ID] = r.Number
	}
	return all
}
