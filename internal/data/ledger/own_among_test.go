package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// Own facts are folded before they are read, even between open and aborted transactions. No
// fact of an aborted transaction is folded, and no later fact is left out.
func TestOwnFactsAmongTransactions(t *testing.T) {
	w, s := newWorld(t, 2), &script{}
	ledgers := []*ledger.Ledger{w.open(), w.open()}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for k := range 4 {
		working.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				v, _ := s.runRequest("intent", fmt.Sprint("bot-", k), fmt.Sprint("own-", n), nil)
				if _, _, err := ledgers[n%2].Append(t.Context(), v); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	w.transact(6, func(n int, x *broker.Tx) {
		for k := range 4 {
			v, _ := s.runRequest("intent", fmt.Sprint("bot-", k), fmt.Sprint("together-", n), nil)
			x.Send(t.Context(), tidemill.StreamFacts, v)
		}
	})
	stop()
	working.Wait()
	w.waitSettled(ledgers[0])
	w.checkSame(w.modelOf())
}

// transact runs transactions. Before each it runs the same transaction and aborts it.
func (w *world) transact(times int, do func(n int, x *broker.Tx)) {
	w.t.Helper()
	ctx, no := w.t.Context(), errors.New("no")
	_, err := w.broker.EnsureStreams(ctx, []broker.StreamSpec{{Name: "steps", Partitions: 1}}, broker.EnsureOptions{})
	must(w.t, err)
	c, err := w.broker.Consumer(ctx, broker.ConsumerOptions{Group: "g", Streams: []string{"steps"}})
	must(w.t, err)
	tx, err := c.Transactor(broker.ProducerOptions{})
	must(w.t, err)
	next := func(n int) {
		_, err := w.produce.Publish(ctx, "steps", &broker.View{ID: fmt.Sprint(n), Source: "/s", Type: "step", Key: []byte("k")})
		must(w.t, err)
	}
	next(0)
	for n, done, refused := 0, 0, true; done < times; n++ {
		d, err := c.Poll(ctx)
		must(w.t, err)
		refuse := refused
		err = tx.Do(ctx, func(x *broker.Tx) error {
			do(n, x)
			x.Done(d)
			if refuse {
				return no
			}
			return nil
		})
		switch {
		case err == nil:
			done, refused = done+1, true
			next(done)
		case errors.Is(err, no):
			refused = false
		case !errors.Is(err, broker.ErrAborted):
			w.t.Fatal(err)
		}
	}
	must(w.t, tx.Close(ctx))
	must(w.t, c.Close(ctx))
}
