package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/deadletters"
)

const (
	usualPage = 100
	mostOnOne = 1000 // letters a page
)

func letterParameters() []string {
	return []string{"cursor", "key", "limit", "reason", "since", "stream", "trigger", "type", "until"}
}

// listLetters answers with the open dead letters that are meant, newest first.
func (g *Gateway) listLetters(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query(letterParameters())
	if p != nil {
		return p
	}
	selection, p := g.selection(r, access.Read, selectionOf(values))
	if p != nil {
		return p
	}
	limit, p := pageOf(values.Get("limit"))
	if p != nil {
		return p
	}
	book, p := g.book(r.Context())
	if p != nil {
		return p
	}
	page, total, next, err := book.Newest(selection, limit, values.Get("cursor"))
	if err != nil {
		return badParameter("cursor", err.Error())
	}
	all := api.DeadLetters{DeadLetters: []api.DeadLetter{}, Total: total, Cursor: next}
	for i := range page {
		all.DeadLetters = append(all.DeadLetters, deadLetterOf(&page[i]))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

func selectionOf(values url.Values) api.LetterSelection {
	return api.LetterSelection{Trigger: values.Get("trigger"), Reason: values.Get("reason"), Type: values.Get("type"), Key: values.Get("key"),
		Stream: values.Get("stream"), Since: values.Get("since"), Until: values.Get("until")}
}

func pageOf(text string) (int, *api.Problem) {
	if text == "" {
		return usualPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostOnOne {
		return 0, badParameter("limit", fmt.Sprintf("%q is not a number of dead letters; give 1 to %d, and the cursor for more", clip(text), mostOnOne))
	}
	return n, nil
}

// selection is what a caller means, less what he may not touch in a role.
func (g *Gateway) selection(r *request, role access.Role, asked api.LetterSelection) (deadletters.Selection, *api.Problem) {
	s := deadletters.Selection{IDs: asked.IDs, Trigger: asked.Trigger, Reason: asked.Reason, Type: asked.Type, Key: asked.Key, Stream: asked.Stream}
	now := time.Now()
	for _, limit := range []struct {
		name, text string
		to         *time.Time
	}{{"since", asked.Since, &s.Since}, {"until", asked.Until, &s.Until}} {
		if limit.text == "" {
			continue
		}
		at, err := follow.ParseTime(limit.text, now)
		if err != nil {
			return s, badParameter(limit.name, err.Error()+"; in an address + is %2B")
		}
		*limit.to = at
	}
	if caller := r.caller; !caller.AllKeys(role) {
		s.May = func(key string) bool { return caller.MayTouch(role, key) }
	}
	return s, nil
}

func deadLetterOf(e *deadletters.Entry) api.DeadLetter {
	l := api.DeadLetter{ID: e.ID, State: api.LetterOpen, Written: e.Written, Position: positionOf(e.At), Trigger: e.Trigger, Group: e.Group,
		Reason: e.Reason, Type: e.Type, Key: e.Key, Source: positionOf(e.Source), LastOffset: e.Last, Tried: e.Tried, Replay: e.Replay}
	if e.Replay != "" {
		l.State = api.LetterReplaying
	}
	return l
}

// showLetter answers with all that is known of one dead letter, also of one that
// is resolved.
func (g *Gateway) showLetter(w http.ResponseWriter, r *request) *api.Problem {
	book, p := g.book(r.Context())
	if p != nil {
		return p
	}
	whole, err := findLetter(r.Context(), book, r.value)
	switch {
	case errors.Is(err, deadletters.ErrNotOpen), err == nil && !r.caller.MayTouch(access.Read, whole.Letter.Key) && !r.caller.AllKeys(access.Read):
		return unknownLetter(r.value)
	case errors.Is(err, deadletters.ErrAmbiguous):
		return badParameter("id", err.Error())
	case err != nil:
		return g.unfollowed(r.Context(), err, "the dead letter")
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

func findLetter(ctx context.Context, book *deadletters.Book, id string) (*api.WholeLetter, error) {
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
func resolvedLetter(ctx context.Context, book *deadletters.Book, at broker.Position, whole *api.WholeLetter) error {
	var letter broker.Position
	err := book.At(ctx, []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		r, err := deadletters.ReadReceipt(&e.View)
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
func readLetter(ctx context.Context, book *deadletters.Book, at broker.Position, whole *api.WholeLetter) error {
	return book.At(ctx, []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		l, err := deadletters.Read(&e.View)
		if err != nil {
			return err
		}
		if whole.Letter.ID == "" {
			entry := deadletters.EntryOf(at, timeOf(e), &e.View, l)
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
func showOriginal(l *deadletters.Letter, whole *api.WholeLetter) {
	v, err := l.Original()
	switch {
	case errors.Is(err, deadletters.ErrNoRecord):
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
