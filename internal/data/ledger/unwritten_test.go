package ledger_test

import (
	"testing"

	"tidemill.dev/internal/data/ledger"
)

// Several ledgers fill an empty Redis at once. Each writes only from time to time, and often finds
// that another ledger has applied the same facts. Redis is flushed, and the ledgers fill it again.
func TestSeveralRefillAndWriteRarely(t *testing.T) {
	w := newWorld(t, 5)
	w.history(&script{}, 700) // few enough runs, so that one commit is linked to all of them
	want := w.modelOf()
	var all []*ledger.Ledger
	for _, o := range []struct{ atOnce, rows int }{{7, 40}, {13, 25}, {400, 60}} {
		all = append(all, w.openWith(w.options().AtOnce(o.atOnce).Far(1, o.rows)))
	}
	for range 2 {
		for _, l := range all {
			caughtUp(t, l)
		}
		w.checkSame(want)
		must(t, w.redis.FlushAll(t.Context()).Err())
		w.waitSettled(all[0])
	}
	w.checkSame(want)
}

// A ledger that writes rarely has written everything in the end, even if the last records
// change nothing.
func TestWhatIsUnwrittenIsWrittenAtTheEnd(t *testing.T) {
	w := newWorld(t, 2)
	w.history(&script{}, 300)
	l := w.openWith(w.options().AtOnce(10).Far(1, 1_000_000))
	caughtUp(t, l)
	w.checkSame(w.modelOf())
	w.history(&script{n: 1_000_000}, 300) // the same causes again
	w.waitSettled(l)
	w.checkSame(w.modelOf())
}
