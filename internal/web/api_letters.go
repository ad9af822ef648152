package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
	"tidemill.dev/triggers/letters"
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
func (g *Gateway) selection(r *request, role access.Role, asked api.LetterSelection) (letters.Selection, *api.Problem) {
	s := letters.Selection{IDs: asked.IDs, Trigger: asked.Trigger, Reason: asked.Reason, Type: asked.Type, Key: asked.Key, Stream: asked.Stream}
	now := time.Now()
	for _, limit := range []struct {
		name, text string
		to         *time.Time
	}{{"since", asked.Since, &s.Since}, {"until", asked.Until, &s.Until}} {
		if limit.text == "" {
			continue
		}
		at, err := tail.ParseTime(limit.text, now)
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

func deadLetterOf(e *letters.Entry) api.DeadLetter {
	l := api.DeadLetter{ID: e.ID, State: api.LetterOpen, Written: e.Written, Position: positionOf(e.At), Trigger: e.Trigger, Group: e.Group,
		Reason: e.Reason, Type: e.Type, Key: e.Key, Source: positionOf(e.Source), LastOffset: e.Last, Tried: e.Tried, Replay: e.Replay}
	if e.Replay != "" {
		l.State = api.LetterReplaying
	}
	return l
}
