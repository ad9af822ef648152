package web

import (
	"maps"
	"net/http"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
	"tidemill.dev/triggers/letters"
)

const (
	mostLetters = 50_000 // that one request may ask for
	someLetters = 20     // that a refusal names
)

// readLetterAsk reads what is to be done with which letters.
func (g *Gateway) readLetterAsk(r *request) (a api.LetterAsk, s letters.Selection, p *api.Problem) {
	if p = g.readAsk(r, &a); p != nil {
		return a, s, p
	}
	if s, p = g.selection(r, access.Operate, a.Selection); p != nil {
		return a, s, p
	}
	if s.All() != a.Selection.All {
		return a, s, badParameter("selection", "give what is meant, or all: true and nothing else")
	}
	return a, s, badRate(a.Rate)
}

// replayLetters asks that dead letters are delivered after all.
func (g *Gateway) replayLetters(w http.ResponseWriter, r *request) *api.Problem {
	ask, selection, p := g.readLetterAsk(r)
	if p != nil {
		return p
	}
	if ask.Reason != "" {
		return badParameter("reason", "a replay needs none; to select by reason, give selection.reason")
	}
	book, p := g.book(r.Context())
	if p != nil {
		return p
	}
	todo, done := sortOut(book, selection, ask, notReplayable(g.opt.Config()))
	if !ask.DryRun {
		if p := g.askReplays(r, book, todo, ask.Rate, &done); p != nil {
			return p
		}
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// notReplayable says why letters of a trigger cannot be replayed, and what can
// be done instead; empty if they can. It is asked for a million letters and
// looks each trigger up once.
func notReplayable(c *config.Config) func(trigger string) string {
	reasons := map[string]string{
		"": "no trigger's delivery failed: a scorer could not score the event, a record was no event, or it was gone before it could be read. Have its publisher mend it and publish it again, then drop the letter",
	}
	return func(trigger string) string {
		reason, known := reasons[trigger]
		if !known {
			if _, ok := c.Trigger(trigger); !ok {
				reason = "trigger " + trigger + " is not in the config: put it back and replay, or drop the letter"
			}
			reasons[trigger] = reason
		}
		return reason
	}
}

// sortOut tells the letters that something can be done with from the others.
func sortOut(book *letters.Book, s letters.Selection, ask api.LetterAsk, why func(trigger string) string) (todo []letters.Entry, done api.LetterDone) {
	done = api.LetterDone{Letters: []string{}, Refused: []api.RefusedGroup{}, Acts: []api.LetterAct{}, DryRun: ask.DryRun}
	absent := make(map[string]bool, len(s.IDs))
	for _, id := range s.IDs {
		absent[id] = true
	}
	book.ByKey(s, func(e letters.Entry) {
		done.Matched++
		delete(absent, e.ID)
		switch reason := why(e.Trigger); {
		case e.Replay != "":
			done.Replaying++
		case reason != "":
			refuse(&done, reason, e.ID)
		case len(todo) == mostLetters:
			done.Left++
		default:
			todo = append(todo, e)
			done.Letters = append(done.Letters, e.ID)
		}
	})
	for _, id := range slices.Sorted(maps.Keys(absent)) {
		refuse(&done, whyAbsent(book, id), clip(id))
	}
	return todo, done
}

// whyAbsent is why a letter that was named is not among those that are meant.
func whyAbsent(book *letters.Book, id string) string {
	_, over := book.Receipt(id)
	switch {
	case over:
		return "it has been resolved already; GET /api/v1/dead-letters/{id} has its receipt"
	case book.IsOpen(id):
		return "the rest of the selection excludes it, or you may not touch its key"
	}
	return "there is no dead letter of this id; give ids whole"
}

func refuse(done *api.LetterDone, reason, id string) {
	i := slices.IndexFunc(done.Refused, func(g api.RefusedGroup) bool { return g.Reason == reason })
	if i < 0 {
		done.Refused = append(done.Refused, api.RefusedGroup{Reason: reason, Letters: []string{}})
		i = len(done.Refused) - 1
	}
	group := &done.Refused[i]
	group.Count++
	if len(group.Letters) < someLetters {
		group.Letters = append(group.Letters, id)
	}
}

// askReplays writes an act for each trigger, or several where it has many
// letters. What was written counts if a later one fails: whoever asks again asks
// for the rest.
func (g *Gateway) askReplays(r *request, book *letters.Book, todo []letters.Entry, rate float64, done *api.LetterDone) *api.Problem {
	refs := map[string][]tidemill.LetterRef{}
	var triggers []string
	for i := range todo {
		trigger := todo[i].Trigger
		if refs[trigger] == nil {
			triggers = append(triggers, trigger)
		}
		refs[trigger] = append(refs[trigger], todo[i].Ref())
	}
	for _, trigger := range triggers {
		first := 0
		for chunk := range slices.Chunk(refs[trigger], g.lettersAnAct()) {
			act := tidemill.LetterReplayData{Trigger: trigger, Letters: chunk, Rate: rate, First: first}
			if p := g.askReplay(r, book, act, done); p != nil {
				return p
			}
			first += len(chunk)
		}
	}
	return nil
}

// lettersAnAct is how many letters an act may name to fit an event.
func (g *Gateway) lettersAnAct() int {
	const oneTakes = 200 // bytes
	return min(acts.MaxLetters, max(1, g.opt.Limits.Event/oneTakes-10))
}

func (g *Gateway) askReplay(r *request, book *letters.Book, act tidemill.LetterReplayData, done *api.LetterDone) *api.Problem {
	v, err := g.author(r).ReplayLetters(act)
	if err != nil {
		g.log.Error("an act cannot be written", "trigger", act.Trigger, "reason", err)
		return internalFault()
	}
	at, p := g.publishAct(r, &v)
	if p != nil {
		return p
	}
	book.Asked(v.ID, act.Letters)
	done.Acts = append(done.Acts, api.LetterAct{ID: v.ID, Position: positionOf(at), Trigger: act.Trigger, Letters: len(act.Letters)})
	return nil
}

// placesOf are where letters lie.
func placesOf(todo []letters.Entry) []broker.Position {
	all := make([]broker.Position, len(todo))
	for i := range todo {
		all[i] = todo[i].At
	}
	return all
}
