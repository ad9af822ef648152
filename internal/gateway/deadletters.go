package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

const (
	usualPage = 100
	mostOnOne = 1000 // dead letters on one page
)

func letterParameters() []string {
	return []string{"cursor", "key", "limit", "reason", "scorer", "since", "stream", "trigger", "type", "until"}
}

// listLetters answers with a page of the open dead letters that match, newest first.
func (g *Gateway) listLetters(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery(letterParameters())
	if p != nil {
		return p
	}
	selection, p := g.convertSelection(r, access.Read, selectionOf(values))
	if p != nil {
		return p
	}
	limit, p := pageOf(values.Get("limit"))
	if p != nil {
		return p
	}
	book, p := g.deadLetters(r.Context())
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
	return api.LetterSelection{Trigger: values.Get("trigger"), Scorer: values.Get("scorer"), Reason: values.Get("reason"), Type: values.Get("type"), Key: values.Get("key"),
		Stream: values.Get("stream"), Since: values.Get("since"), Until: values.Get("until")}
}

func pageOf(text string) (int, *api.Problem) {
	if text == "" {
		return usualPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostOnOne {
		return 0, badParameter("limit", fmt.Sprintf("%q is not a number of dead letters; give 1 to %d, and the cursor for more", clipText(text), mostOnOne))
	}
	return n, nil
}

// convertSelection converts the caller's selection, and restricts it to the keys that the role
// covers.
func (g *Gateway) convertSelection(r *request, role access.Role, asked api.LetterSelection) (deadletters.Selection, *api.Problem) {
	s := deadletters.Selection{IDs: asked.IDs, Trigger: asked.Trigger, Scorer: asked.Scorer, Reason: asked.Reason, Type: asked.Type, Key: asked.Key, Stream: asked.Stream}
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
		s.May = func(owner string) bool { return caller.MayTouch(role, owner) }
	}
	return s, nil
}

func deadLetterOf(e *deadletters.Entry) api.DeadLetter {
	l := api.DeadLetter{ID: e.ID, State: api.LetterOpen, Written: e.Written, Position: positionOf(e.At), Trigger: e.Trigger, Scorer: e.Scorer, Group: e.Group,
		Reason: e.Reason, Type: e.Type, Key: e.Key, Source: positionOf(e.Source), LastOffset: e.Last, Tried: e.Tried, Replay: e.Replay}
	if e.Replay != "" {
		l.State = api.LetterReplaying
	}
	return l
}

// showLetter answers with everything known about one dead letter, open or resolved.
func (g *Gateway) showLetter(w http.ResponseWriter, r *request) *api.Problem {
	book, p := g.deadLetters(r.Context())
	if p != nil {
		return p
	}
	whole, owners, err := findLetter(r.Context(), book, r.value)
	unseen := func(owner string) bool { return !r.caller.MayTouch(access.Read, owner) }
	switch {
	case errors.Is(err, deadletters.ErrNotOpen), err == nil && slices.ContainsFunc(owners, unseen) && !r.caller.AllKeys(access.Read):
		return unknownLetter(r.value)
	case errors.Is(err, deadletters.ErrAmbiguous):
		return badParameter("id", err.Error())
	case err != nil:
		return g.followProblem(r.Context(), err, "the dead letter")
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

// findLetter returns a letter, and the keys whose readers may see it.
func findLetter(ctx context.Context, book *deadletters.Book, id string) (whole *api.WholeLetter, owners []string, err error) {
	whole = &api.WholeLetter{Attempts: []api.Attempt{}}
	if at, over := book.Receipt(id); over {
		owners, err = resolvedLetter(ctx, book, at, whole)
		return whole, owners, err
	}
	e, err := book.Find(id)
	if err != nil {
		return nil, nil, err
	}
	whole.Letter = deadLetterOf(&e)
	owners, err = readLetter(ctx, book, e.At, whole)
	return whole, owners, err
}

// resolvedLetter finds a resolved letter by its receipt, because the book knows only the
// receipt's position.
func resolvedLetter(ctx context.Context, book *deadletters.Book, at broker.Position, whole *api.WholeLetter) (owners []string, err error) {
	var letter broker.Position
	err = book.At(ctx, []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		r, err := deadletters.ReadReceipt(&e.View)
		if err != nil {
			return err
		}
		letter = broker.Position{Stream: at.Stream, Partition: r.Partition, Offset: r.Offset}
		whole.Receipt = &api.Receipt{At: timeOf(e), Action: string(r.Action), Outcome: string(r.Outcome), Reason: r.Reason, By: r.By, NewLetter: r.NewLetter}
		return nil
	})
	if err != nil {
		return nil, err
	}
	owners, err = readLetter(ctx, book, letter, whole)
	whole.Letter.State = api.LetterResolved
	return owners, err
}

// readLetter reads the letter itself from its position.
func readLetter(ctx context.Context, book *deadletters.Book, at broker.Position, whole *api.WholeLetter) (owners []string, err error) {
	err = book.At(ctx, []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		l, err := deadletters.Read(&e.View)
		if err != nil {
			return err
		}
		entry := deadletters.EntryOf(at, timeOf(e), &e.View, l)
		if owners = append(owners, entry.Owner); entry.Other != "" {
			owners = append(owners, entry.Other)
		}
		if whole.Letter.ID == "" {
			whole.Letter = deadLetterOf(&entry)
		}
		for _, a := range l.Attempts {
			whole.Attempts = append(whole.Attempts, api.Attempt{At: a.At, TookSeconds: a.Took.Seconds(), Status: a.Status, Error: a.Error, Answer: a.Answer})
		}
		showOriginal(l, whole)
		return nil
	})
	return owners, err
}

// showOriginal shows the letter's event, or its record if the record is not an event. A letter has
// neither if the event was too large for the letter or is lost.
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

// timeOf returns the time of an event, or else of its record.
func timeOf(e *broker.Incoming) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, e.View.Time); err == nil {
		return at.UTC()
	}
	return e.Time.UTC()
}

const (
	mostLetters = 50_000 // dead letters that one request may change
	someLetters = 20     // dead letters that a refusal lists
)

// readLetterAsk reads a request to replay or drop dead letters.
func (g *Gateway) readLetterAsk(r *request) (a api.LetterAsk, s deadletters.Selection, p *api.Problem) {
	if p = g.readCommand(r, &a); p != nil {
		return a, s, p
	}
	if s, p = g.convertSelection(r, access.Operate, a.Selection); p != nil {
		return a, s, p
	}
	if s.All() != a.Selection.All {
		return a, s, badParameter("selection", "give a selection, or all: true and nothing else")
	}
	return a, s, badRate(a.Rate)
}

// replayLetters requests the delivery of dead letters.
func (g *Gateway) replayLetters(w http.ResponseWriter, r *request) *api.Problem {
	ask, selection, p := g.readLetterAsk(r)
	if p != nil {
		return p
	}
	if ask.Reason != "" {
		return badParameter("reason", "a replay needs none; to select by reason, give selection.reason")
	}
	book, p := g.deadLetters(r.Context())
	if p != nil {
		return p
	}
	todo, done := sortOut(book, selection, ask, notReplayable(g.opt.Config(), g.partitionsNow(r.Context())))
	if !ask.DryRun {
		if p := g.replayAll(r, book, todo, ask.Rate, &done); p != nil {
			return p
		}
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// replayAll requests the delivery of the triggers' letters, and scores the events of the scorers'
// letters.
func (g *Gateway) replayAll(r *request, book *deadletters.Book, todo []deadletters.Entry, rate float64, done *api.LetterDone) *api.Problem {
	ofScorers := map[string][]deadletters.Entry{}
	ofTriggers := todo[:0:0]
	done.Letters = done.Letters[:0]
	for _, e := range todo {
		if e.Scorer != "" {
			ofScorers[e.Scorer] = append(ofScorers[e.Scorer], e)
			continue
		}
		ofTriggers, done.Letters = append(ofTriggers, e), append(done.Letters, e.ID)
	}
	if p := g.askReplays(r, book, ofTriggers, rate, done); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	for _, scorer := range slices.Sorted(maps.Keys(ofScorers)) {
		if p := g.replayScored(ctx, r, scorer, ofScorers[scorer], done); p != nil {
			return p
		}
	}
	return nil
}

// Replay scores the events of a scorer's dead letters. A letter that is in no part of the result is
// left for another request.
type Replay func(ctx context.Context, c config.Scorer, letters []deadletters.Entry, by string) (resolved []string, failed map[string]string, err error)

// replayScored scores the events of a scorer's letters for as long as one answer may take. The rest
// is left for the caller's next request.
func (g *Gateway) replayScored(ctx context.Context, r *request, scorer string, todo []deadletters.Entry, done *api.LetterDone) *api.Problem {
	c, _ := g.opt.Config().Scorer(scorer)
	if g.opt.Replay == nil {
		return noScoring()
	}
	began := time.Now()
	for len(todo) > 0 && time.Since(began) < g.opt.Limits.Ack/2 {
		chunk := todo[:min(len(todo), lettersAtOnce)]
		resolved, failed, err := g.opt.Replay(ctx, c, chunk, r.callerName())
		if err != nil {
			return g.scoreProblem(r.Context(), scorer, err)
		}
		done.Letters = append(done.Letters, resolved...)
		for _, id := range slices.Sorted(maps.Keys(failed)) {
			refuse(done, "it still cannot be scored: "+failed[id], id)
		}
		todo = todo[len(chunk):]
		done.Left += len(chunk) - len(resolved) - len(failed)
	}
	done.Left += len(todo)
	g.log.Info("gateway: dead letters of a scorer replayed", "scorer", scorer, "events", len(done.Letters), "by", r.loggedName())
	return nil
}

// lettersAtOnce is the number of a scorer's letters in one replay.
const lettersAtOnce = 5000

// notReplayable returns a function whose result says why a letter cannot be replayed, and suggests
// another way. The result is empty if it can be replayed. Each trigger, scorer and stream is looked up
// only once, because the function is called for up to a million letters.
func notReplayable(c *config.Config, partitionsOf func(stream string) int) func(*deadletters.Entry) string {
	type origin struct {
		trigger, scorer, stream string
		partition               int32
	}
	reasons := map[origin]string{}
	return func(e *deadletters.Entry) string {
		of := origin{e.Trigger, e.Scorer, e.Source.Stream, e.Source.Partition}
		reason, known := reasons[of]
		if known {
			return reason
		}
		_, isTrigger := c.Trigger(e.Trigger)
		_, isScorer := c.Scorer(e.Scorer)
		_, isStream := c.Stream(e.Source.Stream)
		switch {
		case e.Scorer == "" && e.Trigger == "":
			reason = "it is not of a failed delivery: a record was not an event, or it was deleted unread. Let its publisher fix it and publish it again, then drop the dead letter"
		case e.Scorer != "" && !isScorer:
			reason = "scorer " + e.Scorer + " is not in the config: add it again and replay, or drop the dead letter"
		case e.Scorer == "" && !isTrigger:
			reason = "trigger " + e.Trigger + " is not in the config: add it again and replay, or drop the dead letter"
		case e.Scorer == "" && !isStream: // no dispatcher serves it, so the replay would not end
			reason = "stream " + e.Source.Stream + " is not in the config: add it again and replay, or drop the dead letter"
		case e.Scorer == "" && int(e.Source.Partition) >= partitionsOf(e.Source.Stream):
			reason = fmt.Sprintf("stream %s has no partition %d any more: publish the event again, then drop the dead letter", e.Source.Stream, e.Source.Partition)
		}
		reasons[of] = reason
		return reason
	}
}

// partitionsNow returns a function that returns the number of a stream's partitions in Kafka. While Kafka does not answer, no
// partition counts as removed.
func (g *Gateway) partitionsNow(ctx context.Context) func(stream string) int {
	known := map[string]int{}
	return func(stream string) int {
		if _, asked := known[stream]; !asked {
			ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
			defer cancel()
			known[stream] = math.MaxInt
			if ends, err := g.opt.Broker.Ends(ctx, stream); err == nil {
				known[stream] = len(ends)
			}
		}
		return known[stream]
	}
}

// sortOut separates the letters to replay or drop from the others.
func sortOut(book *deadletters.Book, s deadletters.Selection, ask api.LetterAsk, why func(*deadletters.Entry) string) (todo []deadletters.Entry, done api.LetterDone) {
	done = api.LetterDone{Letters: []string{}, Refused: []api.RefusedGroup{}, Commands: []api.LetterCommand{}, DryRun: ask.DryRun}
	absent := make(map[string]bool, len(s.IDs))
	for _, id := range s.IDs {
		absent[id] = true
	}
	book.ByKey(s, func(e deadletters.Entry) {
		done.Matched++
		delete(absent, e.ID)
		switch reason := why(&e); {
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
		refuse(&done, whyAbsent(book, id), clipText(id))
	}
	return todo, done
}

// whyAbsent returns why a letter named by the caller is not selected.
func whyAbsent(book *deadletters.Book, id string) string {
	_, over := book.Receipt(id)
	switch {
	case over:
		return "it has been resolved already; GET /api/v1/dead-letters/{id} has its receipt"
	case book.IsOpen(id):
		return "the rest of the selection excludes it, or you may not touch its key"
	}
	return "there is no dead letter with this id; give complete ids"
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

// askReplays writes one command per trigger, or several if the trigger has many letters. If a later
// command fails, the earlier commands still count: the caller's next request covers the rest.
func (g *Gateway) askReplays(r *request, book *deadletters.Book, todo []deadletters.Entry, rate float64, done *api.LetterDone) *api.Problem {
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

// lettersAnAct is the number of letters whose names fit into one command's event.
func (g *Gateway) lettersAnAct() int {
	const oneTakes = 200 // bytes
	return min(commands.MaxLetters, max(1, g.opt.Limits.Event/oneTakes-10))
}

func (g *Gateway) askReplay(r *request, book *deadletters.Book, act tidemill.LetterReplayData, done *api.LetterDone) *api.Problem {
	v, err := g.commandAuthor(r).ReplayLetters(act)
	if err != nil {
		g.log.Error("gateway: encoding a command failed; the caller gets a 500", "trigger", act.Trigger, "reason", err)
		return internalFault()
	}
	at, p := g.publishAct(r, &v)
	if p != nil {
		return p
	}
	book.Asked(v.ID, act.Letters)
	done.Commands = append(done.Commands, api.LetterCommand{ID: v.ID, Position: positionOf(at), Trigger: act.Trigger, Letters: len(act.Letters)})
	return nil
}

// placesOf returns the positions of letters.
func placesOf(todo []deadletters.Entry) []broker.Position {
	all := make([]broker.Position, len(todo))
	for i := range todo {
		all[i] = todo[i].At
	}
	return all
}

// mostReason is the maximum size of a drop's reason, in bytes. Each letter's receipt repeats the
// reason.
const mostReason = 1000

// dropLetters resolves dead letters without a delivery. The receipts are on the log before the
// answer.
func (g *Gateway) dropLetters(w http.ResponseWriter, r *request) *api.Problem {
	ask, selection, p := g.readLetterAsk(r)
	switch {
	case p != nil:
		return p
	case strings.TrimSpace(ask.Reason) == "":
		return badParameter("reason", "give the reason: the receipts record it")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and every receipt repeats it: use at most %d", len(ask.Reason), mostReason))
	case ask.Rate != 0:
		return badParameter("rate", "a drop has none")
	}
	book, p := g.deadLetters(r.Context())
	if p != nil {
		return p
	}
	todo, done := sortOut(book, selection, ask, func(*deadletters.Entry) string { return "" })
	if !ask.DryRun && len(todo) > 0 {
		if p := g.dropEach(r, book, todo, ask.Reason, &done); p != nil {
			return p
		}
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// dropEach writes the receipts of the letters. It also reads each letter, because the receipt
// continues the letter's chain of causes. Letters for which there is no time are left for the next
// request.
func (g *Gateway) dropEach(r *request, book *deadletters.Book, todo []deadletters.Entry, reason string, done *api.LetterDone) *api.Problem {
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	began := time.Now()
	d := letterDrop{g: g, ctx: ctx, book: book, by: r.callerName(), reason: reason}
	err := book.At(ctx, placesOf(todo), func(at broker.Position, e *broker.Incoming) error {
		if time.Since(began) > g.opt.Limits.Ack/2 {
			return errLate
		}
		return d.sendReceipt(at, e)
	})
	d.sent.Wait()
	done.Letters, done.Left = d.ids, done.Left+len(todo)-len(d.ids)
	if err != nil && !errors.Is(err, errLate) {
		d.failed = errors.Join(d.failed, err)
	}
	if d.failed != nil {
		return g.commandProblem(&broker.View{ID: d.last, Type: tidemill.TypeEventResolved}, d.failed, time.Since(began))
	}
	g.log.Info("gateway: dead letters dropped", "events", len(d.ids), "reason", reason, "by", r.loggedName())
	return nil
}

var errLate = errors.New("it takes too long")

// letterDrop is one drop in progress.
type letterDrop struct {
	g          *Gateway
	ctx        context.Context
	book       *deadletters.Book
	by, reason string
	sent       sync.WaitGroup

	mu     sync.Mutex
	ids    []string // letters whose receipts are on the log
	last   string   // id of the receipt that failed
	failed error
}

// sendReceipt writes a letter's receipt to the partition of the letter.
func (d *letterDrop) sendReceipt(at broker.Position, e *broker.Incoming) error {
	receipt := deadletters.Receipt{Letter: strings.Clone(e.ID), Partition: at.Partition, Offset: at.Offset,
		Action: deadletters.Dropped, Outcome: deadletters.DroppedByAct, Reason: d.reason, By: d.by}
	v, err := deadletters.Resolved(d.g.installNames(), &e.View, receipt, time.Now())
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
