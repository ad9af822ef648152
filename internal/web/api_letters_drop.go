package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/triggers/letters"
)

// mostReason is how long a drop's reason may be, in bytes. One request may write
// as many receipts as it names letters.
const mostReason = 1000

// dropLetters resolves dead letters without a delivery. Their receipts are on
// the log when it answers.
func (g *Gateway) dropLetters(w http.ResponseWriter, r *request) *api.Problem {
	ask, selection, p := g.readLetterAsk(r)
	switch {
	case p != nil:
		return p
	case strings.TrimSpace(ask.Reason) == "":
		return badParameter("reason", "say why the letters are dropped: their receipts tell it")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and every letter's receipt repeats it: say it in %d", len(ask.Reason), mostReason))
	case ask.Rate != 0:
		return badParameter("rate", "a drop has none")
	}
	book, p := g.book(r.Context())
	if p != nil {
		return p
	}
	todo, done := sortOut(book, selection, ask, func(string) string { return "" })
	if !ask.DryRun && len(todo) > 0 {
		if p := g.drop(r, book, todo, ask.Reason, &done); p != nil {
			return p
		}
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// drop reads each letter, because its receipt goes on with what it says of its
// cause, and writes the receipts. What takes too long is left for the next
// request.
func (g *Gateway) drop(r *request, book *letters.Book, todo []letters.Entry, reason string, done *api.LetterDone) *api.Problem {
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	began := time.Now()
	d := dropping{g: g, ctx: ctx, book: book, by: r.name(), reason: reason}
	err := book.At(ctx, placesOf(todo), func(at broker.Position, e *broker.Incoming) error {
		if time.Since(began) > g.opt.Limits.Ack/2 {
			return errLate
		}
		return d.send(at, e)
	})
	d.sent.Wait()
	done.Letters, done.Left = d.ids, done.Left+len(todo)-len(d.ids)
	if err != nil && !errors.Is(err, errLate) {
		d.failed = errors.Join(d.failed, err)
	}
	if d.failed != nil {
		return g.unwritten(&broker.View{ID: d.last, Type: tidemill.TypeEventResolved}, d.failed, time.Since(began))
	}
	g.log.Info("dead letters are dropped", "events", len(d.ids), "reason", reason, "by", r.name())
	return nil
}

var errLate = errors.New("it takes too long")

// dropping is one drop under way.
type dropping struct {
	g          *Gateway
	ctx        context.Context
	book       *letters.Book
	by, reason string
	sent       sync.WaitGroup

	mu     sync.Mutex
	ids    []string // whose receipts are on the log
	last   string   // the receipt that failed
	failed error
}

// send writes a letter's receipt to the letter's own partition.
func (d *dropping) send(at broker.Position, e *broker.Incoming) error {
	receipt := letters.Receipt{Letter: strings.Clone(e.ID), Partition: at.Partition, Offset: at.Offset,
		Action: letters.Dropped, Outcome: letters.DroppedByAct, Reason: d.reason, By: d.by}
	v, err := letters.Resolved(d.g.names(), &e.View, receipt, time.Now())
	if err != nil {
		return err
	}
	d.sent.Add(1)
	id := v.ID
	d.g.opt.Producer.SendTo(d.ctx, at.Stream, at.Partition, &v, func(lies broker.Receipt, err error) {
		defer d.sent.Done()
		d.mu.Lock()
		defer d.mu.Unlock()
		if err != nil {
			d.last, d.failed = id, err
			return
		}
		d.ids = append(d.ids, receipt.Letter)
		d.book.Resolved(broker.Position{Stream: at.Stream, Partition: lies.Partition, Offset: lies.Offset}, &receipt)
	})
	return nil
}
