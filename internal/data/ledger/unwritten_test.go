package ledger_test

import (
	"testing"

	"tidemill.dev/internal/data/ledger"
)

// Several ledgers fill an empty Redis at once, each of which writes only now and
// then, and one finds again and again that another has been where it is. Then Redis
// is flushed, and they do it once more.
func TestSeveralRefillAndWriteRarely(t *testing.T) {
	w := newWorld(t, 5)
	w.history(&script{}, 700) // as many runs as are linked to one commit
	want := w.modelOf()
	var all []*ledger.Ledger
	for _, o := range []struct{ atOnce, rows int }{{7, 40}, {13, 25}, {400, 60}} {
		all = append(all, w.openWith(w.options().AtOnce(o.atOnce).Far(1, o.rows)))
	}
	for range 2 {
		for _, l := range all {
			caughtUp(t, l)
		}
		w.same(want)
		must(t, w.redis.FlushAll(t.Context()).Err())
		w.settled(all[0])
	}
	w.same(want)
}

// Who writes rarely has written all in the end, whatever lies between the facts.
func TestWhatIsUnwrittenIsWrittenAtTheEnd(t *testing.T) {
	w := newWorld(t, 2)
	w.history(&script{}, 300)
	l := w.openWith(w.options().AtOnce(10).Far(1, 1_000_000))
	caughtUp(t, l)
	w.same(w.modelOf())
	w.history(&script{n: 1_000_000}, 300) // of causes that are known
	w.settled(l)
	w.same(w.modelOf())
}
