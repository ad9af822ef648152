package web

import (
	"context"
	"errors"
	"net/http"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/triggers/letters"
)

// showLetter answers with all that is known of one dead letter, also of one that
// is resolved.
func (g *Gateway) showLetter(w http.ResponseWriter, r *request) *api.Problem {
	book, p := g.book(r.Context())
	if p != nil {
		return p
	}
	whole, err := findLetter(r.Context(), book, r.value)
	switch {
	case errors.Is(err, letters.ErrNotOpen), err == nil && !r.caller.MayTouch(access.Read, whole.Letter.Key) && !r.caller.AllKeys(access.Read):
		return unknownLetter(r.value)
	case errors.Is(err, letters.ErrAmbiguous):
		return badParameter("id", err.Error())
	case err != nil:
		return g.unfollowed(r.Context(), err, "the dead letter")
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

func findLetter(ctx context.Context, book *letters.Book, id string) (*api.WholeLetter, error) {
	whole := &api.WholeLetter{Attempts: []api.Attempt{}}
	if at, over := book.Receipt(id); over {
		return whole, resolvedLetter(ctx, book, at, whole)
	}
	e, err := book.Find(id)
	if err != nil {
		return nil, err
	}
	whole.Letter = deadLetterOf(&e)
	return whole, readLetter(ctx, book, e.At, whole)
}

// resolvedLetter finds a letter by its receipt: of a resolved one the book knows
// no more than where that lies.
func resolvedLetter(ctx context.Context, book *letters.Book, at broker.Position, whole *api.WholeLetter) error {
	var letter broker.Position
	err := book.At(ctx, []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		r, err := letters.ReadReceipt(&e.View)
		if err != nil {
			return err
		}
		letter = broker.Position{Stream: at.Stream, Partition: r.Partition, Offset: r.Offset}
		whole.Receipt = &api.Receipt{At: timeOf(e), Action: string(r.Action), Outcome: string(r.Outcome), Reason: r.Reason, By: r.By, NewLetter: r.NewLetter}
		return nil
	})
	if err != nil {
		return err
	}
	if err := readLetter(ctx, book, letter, whole); err != nil {
		return err
	}
	whole.Letter.State = api.LetterResolved
	return nil
}

// readLetter reads the letter itself, where it lies.
func readLetter(ctx context.Context, book *letters.Book, at broker.Position, whole *api.WholeLetter) error {
	return book.At(ctx, []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		l, err := letters.Read(&e.View)
		if err != nil {
			return err
		}
		if whole.Letter.ID == "" {
			entry := letters.EntryOf(at, timeOf(e), &e.View, l)
			whole.Letter = deadLetterOf(&entry)
		}
		for _, a := range l.Attempts {
			whole.Attempts = append(whole.Attempts, api.Attempt{At: a.At, TookSeconds: a.Took.Seconds(), Status: a.Status, Error: a.Error, Answer: a.Answer})
		}
		showOriginal(l, whole)
		return nil
	})
}

// showOriginal shows the event or, of what is none, the record. Of an event that
// was too large for its letter, and of one that is lost, there is neither.
func showOriginal(l *letters.Letter, whole *api.WholeLetter) {
	v, err := l.Original()
	switch {
	case errors.Is(err, letters.ErrNoRecord):
	case err == nil:
		whole.Event = broker.MarshalStructured(&v)
	default:
		whole.Record = &api.Record{Key: l.Record.Key, Value: l.Record.Value, Headers: []api.Header{}}
		for _, h := range l.Record.Headers {
			whole.Record.Headers = append(whole.Record.Headers, api.Header{Key: h.Key, Value: h.Value})
		}
	}
}

// timeOf is when an event says that it was written, else when the log had it.
func timeOf(e *broker.Incoming) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, e.View.Time); err == nil {
		return at.UTC()
	}
	return e.Time.UTC()
}
