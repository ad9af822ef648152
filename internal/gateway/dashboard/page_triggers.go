package dashboard

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func triggerPages() []*page {
	return []*page{
		{path: "/ui/triggers", nav: "/ui/triggers", title: named("Triggers and schedules"), regions: []region{
			part("triggers", "triggers", asked[api.Triggers]("/api/v1/triggers"), showTriggers),
			part("schedules", "schedules", asked[api.Schedules]("/api/v1/schedules"), showSchedules),
		}, main: still(func(v *view) Node { return list(h.H1(say(v.Title)), v.Region("triggers"), v.Region("schedules")) })},
		{path: "/ui/triggers/{trigger}", nav: "/ui/triggers", title: func(v *visit) string { return "Trigger " + word(v.PathValue("trigger")) }, regions: []region{
			part("trigger", "triggers", asked[api.Trigger]("/api/v1/triggers/{trigger}"), showTrigger),
			part("history", "triggers", loadTriggerHistory, showHistory),
			part("letters", "dead-letters", loadLettersOfTrigger, showLettersOfTrigger),
		}, main: still(func(v *view) Node {
			return list(h.H1(say(v.Title)), v.Region("trigger"), v.Region("history"), v.Region("letters"))
		})},
	}
}

func showTriggers(v *visit, all *api.Triggers) Node {
	if len(all.Triggers) == 0 {
		return list(h.H2(say("Triggers")), hint{"The config has no triggers. A trigger sends the events of a stream to a URL, a service or a function.", "To check a config with one:", "tidemill validate"}.node())
	}
	return list(h.H2(say("Triggers")), scroll("rows", heads("Trigger", "State", "Streams", "To", "#Delivered", "#Failed", "#In flight", "#Waiting", "Oldest", "#Dead letters", "Last error", "Act"),
		rows(each(all.Triggers, func(t *api.Trigger) Node {
			trouble := say(word(t.Waits))
			if t.Waits == "" && t.LastError != "" {
				trouble = list(say(word(t.LastError)+" "), v.ago(t.LastErrorAt))
			}
			return row(t.Name, rowName(triggerLink(t.Name)), cell(badge(t.State)), cell(each(t.Streams, func(name *string) Node { return list(streamLink(*name), say(" ")) })), cell(targetOf(&t.To)), v.triggerNumbers(t.Numbers),
				figure(anchor(queryURL("/ui/dead-letters", "trigger", t.Name), say(count(t.DeadLetters)))), cell(trouble), acts(v.pauseOrResume("trigger", t.Name, t.PausedSince)))
		}))))
}

func (v *visit) triggerNumbers(n *api.TriggerNumbers) Node {
	if n == nil {
		unknown := figure(say("?"))
		return list(unknown, unknown, unknown, unknown, cell(say("?")))
	}
	return list(figure(say(count(n.Delivered))), figure(say(count(n.Failed))), figure(say(count(n.InFlight))), figure(say(count(n.Parked))), cell(v.ago(n.OldestParked)))
}

// pauseOrResume is the button that a thing of some kind has now.
func (v *visit) pauseOrResume(kind, name string, since *time.Time) Node {
	if since != nil {
		return v.Act("resume-"+kind, kind, name)
	}
	return v.Act("pause-"+kind, kind, name)
}

func targetOf(t *api.Target) Node {
	switch {
	case t.URL != "":
		return text(t.URL)
	case t.Service != "":
		return list(say("service "), text(t.Service))
	}
	return list(say("function "), text(t.Function))
}

func showSchedules(v *visit, all *api.Schedules) Node {
	if len(all.Schedules) == 0 {
		return list(h.H2(say("Schedules")), empty("The config has no schedules."))
	}
	return list(h.H2(say("Schedules")), scroll("rows", heads("Schedule", "State", "Cron", "Time zone", "Keys", "Last tick", "Next tick", "Missed ticks", "Act"), rows(each(all.Schedules, func(s *api.Schedule) Node {
		keys := "none"
		switch {
		case s.Each:
			keys = "each key of its recipes"
		case s.Keys != 0:
			keys = count(s.Keys)
		}
		return row(s.Name, rowName(text(s.Name)), cell(badge(s.State), by(s.PausedBy)), cell(h.Code(say(word(s.Cron)))), cell(text(s.TimeZone)), cell(say(keys)), cell(v.ago(s.Last)), cell(v.ago(s.Next)), cell(say(word(s.Missed))),
			acts(v.pauseOrResume("schedule", s.Name, s.PausedSince)))
	}))))
}

func showTrigger(v *visit, t *api.Trigger) Node {
	line := g.Group{badge(t.State), by(t.PausedBy)}
	if t.PausedSince != nil {
		line = append(line, say(" "), v.ago(t.PausedSince))
	}
	switch {
	case t.Waits != "":
		line = append(line, say(" "+titled(t.Waits)))
	case t.LastError != "":
		line = append(line, say(" "), quiet(say("last error "), v.ago(t.LastErrorAt), say(":")), say(" "+titled(t.LastError)))
	}
	return list(lead(line),
		actions(v.pauseOrResume("trigger", t.Name, t.PausedSince), say(" "), v.Act("replay-trigger", "trigger", t.Name, "from", "-1h"), say(" "), v.ActAs("Replay dead letters…", "replay-letters", "trigger", t.Name)),
		v.triggerCards(t.Numbers),
		h.H2(say("Events")), table(heads("Stream", "Types", "Condition"), rows(each(t.When, whenRow))),
		h.H2(say("Delivery")), deliveryFacts(t), v.replaysUnderWay(t.Replays))
}

func (v *visit) triggerCards(n *api.TriggerNumbers) Node {
	if n == nil {
		return nothing(say("Its numbers are unknown: no dispatcher reports them."))
	}
	waiting := g.Group{say("waiting")}
	if n.OldestParked != nil {
		waiting = append(waiting, say(", oldest "), v.ago(n.OldestParked))
	}
	return list(note(say("Since the dispatchers have started:")), h.Div(h.Class("cards"), card(count(n.Delivered), say("delivered")), card(count(n.Failed), say("failed attempts")), card(count(n.InFlight), say("in flight")),
		card(count(n.Parked), waiting), card(count(n.DeadLettered), say("became dead letters")), card(count(n.Replies), say("replies"))))
}

func whenRow(w *api.When) Node {
	stream, types := say("by type"), say("all")
	if w.Stream != "" {
		stream = streamLink(w.Stream)
	}
	if len(w.Types) > 0 {
		types = each(w.Types, func(name *string) Node { return list(text(*name), say(" ")) })
	}
	return h.Tr(cell(stream), cell(types), cell(when(w.Where != "", h.Code(say(titled(w.Where))))))
}

func deliveryFacts(t *api.Trigger) Node {
	d, limit := &t.Delivery, "no limit"
	if d.Rate != 0 {
		limit = number(d.Rate) + "/s"
	}
	return facts(fact("To", targetOf(&t.To)), fact("Attempts", say(fmt.Sprintf("%v, backoff %v", d.Attempts, d.Backoff))), fact("Timeout", say(duration(d.TimeoutSeconds))), fact("Order", say(fmt.Sprint(d.Order))),
		fact("Concurrency", say(fmt.Sprint(d.Concurrency))), fact("Rate", say(limit)), fact("Replies", say(fmt.Sprint(d.Replies))))
}

func (v *visit) replaysUnderWay(all []api.TriggerReplay) Node {
	if len(all) == 0 {
		return nil
	}
	return list(h.H2(say("Replays under way")), table(heads("From", "To", "By", "Requested"), rows(each(all, func(r *api.TriggerReplay) Node {
		return h.Tr(cell(say(word(r.From))), cell(say(word(r.To))), cell(text(r.By)), cell(v.ago(r.At)))
	}))))
}

func loadLettersOfTrigger(v *visit) (api.DeadLetters, error) {
	return get[api.DeadLetters](v, "/api/v1/dead-letters", url.Values{"trigger": {v.PathValue("trigger")}, "limit": {"20"}})
}

func showLettersOfTrigger(v *visit, l api.DeadLetters) Node {
	title := h.H2(say("Dead letters "), quiet(say(count(l.Total))))
	if len(l.DeadLetters) == 0 {
		return list(title, nothing(say("None is open.")))
	}
	return list(title, scroll("rows", heads("Dead letter", "Written", "Key", "Type", "Reason"), rows(each(l.DeadLetters, func(one *api.DeadLetter) Node {
		return row(one.ID, rowName(letterLink(one.ID)), cell(v.ago(one.Written)), cell(keyLink(one.Key)), cell(text(one.Type)), cell(say(titled(one.Reason))))
	}))), h.P(anchor(queryURL("/ui/dead-letters", "trigger", v.PathValue("trigger")), say("All dead letters of this trigger"))))
}

func letterPages() []*page {
	return []*page{
		{path: "/ui/dead-letters", nav: "/ui/dead-letters", title: named("Dead letters"), regions: []region{
			part("groups", "dead-letters", loadLetterGroups, showLetterGroups),
			part("letters", "dead-letters", loadLetters, showLetters),
		}, main: still(func(v *view) Node { return list(h.H1(say(v.Title)), v.Region("groups"), v.Region("letters")) })},
		{path: "/ui/dead-letters/{id}", nav: "/ui/dead-letters", title: func(v *visit) string { return "Dead letter " + word(v.PathValue("id")) }, regions: []region{
			part("letter", "dead-letters", asked[api.WholeLetter]("/api/v1/dead-letters/{id}"), showLetter),
		}, main: still(func(v *view) Node { return list(h.H1(say(v.Title)), v.Region("letter")) })},
	}
}

// letterList is a page of dead letters.
type letterList struct {
	api.DeadLetters
	Filtered          bool
	NextURL, FirstURL string
	Selection         []string // arguments that select the same letters in an action
}

func letterFilters() []string {
	return []string{"trigger", "scorer", "reason", "type", "key", "stream", "since", "until"}
}

func loadLetters(v *visit) (*letterList, error) {
	q := v.pick(append(letterFilters(), "cursor")...)
	q.Set("limit", "50")
	letters, err := get[api.DeadLetters](v, "/api/v1/dead-letters", q)
	if err != nil {
		return nil, err
	}
	l := letterList{DeadLetters: letters}
	l.NextURL, l.FirstURL = v.pageURLs("cursor", letters.Cursor)
	for name, values := range v.pick(letterFilters()...) {
		l.Filtered = true
		if name == "reason" {
			name = "with" // reason is the reason of a drop
		}
		l.Selection = append(l.Selection, name, values[0])
	}
	if !l.Filtered {
		l.Selection = []string{"all", "true"}
	}
	return &l, nil
}

// letterGroup counts the dead letters of one trigger or scorer with one reason.
type letterGroup struct {
	Trigger, Scorer, Reason string
	Count                   int
	Newest                  api.DeadLetter
}

// part is a part of the reason that a form can send: its first line, clipped.
func (l *letterGroup) part() string {
	line, _, _ := strings.Cut(l.Reason, "\n")
	for len(line) > maxPart {
		_, last := utf8.DecodeLastRuneInString(line)
		line = line[:len(line)-last]
	}
	return line
}

const maxPart = 1000

// address is that of the group's list.
func (l *letterGroup) address() string {
	q := url.Values{}
	for name, value := range map[string]string{"trigger": l.Trigger, "scorer": l.Scorer, "reason": l.part()} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "/ui/dead-letters?" + q.Encode()
}

// letterGroups are the groups among the newest dead letters.
type letterGroups struct {
	Groups         []letterGroup
	Counted, Total int
}

const (
	letterPage  = 1000  // dead letters of one answer of the API
	mostGrouped = 10000 // dead letters that are read for the groups
)

func loadLetterGroups(v *visit) (*letterGroups, error) {
	var all api.DeadLetters
	for q := (url.Values{"limit": {strconv.Itoa(letterPage)}}); ; q.Set("cursor", all.Cursor) {
		page, err := get[api.DeadLetters](v, "/api/v1/dead-letters", q)
		if err != nil {
			return nil, err
		}
		page.DeadLetters = append(all.DeadLetters, page.DeadLetters...)
		if all = page; all.Cursor == "" || len(all.DeadLetters) >= mostGrouped {
			groups := groupLetters(all)
			return &groups, nil
		}
	}
}

// groupLetters groups dead letters, the greatest group first.
func groupLetters(letters api.DeadLetters) letterGroups {
	at := map[[3]string]int{}
	all := letterGroups{Counted: len(letters.DeadLetters), Total: letters.Total}
	for _, l := range letters.DeadLetters {
		key := [3]string{l.Trigger, l.Scorer, l.Reason}
		i, known := at[key]
		if !known {
			i = len(all.Groups)
			at[key] = i
			all.Groups = append(all.Groups, letterGroup{Trigger: l.Trigger, Scorer: l.Scorer, Reason: l.Reason, Newest: l})
		}
		all.Groups[i].Count++
	}
	slices.SortStableFunc(all.Groups, func(a, b letterGroup) int { return cmp.Compare(b.Count, a.Count) })
	if len(all.Groups) > mostGroups {
		all.Groups = all.Groups[:mostGroups]
	}
	return all
}

const mostGroups = 20

func showLetterGroups(v *visit, all *letterGroups) Node {
	if len(all.Groups) == 0 {
		return nil
	}
	return list(h.H2(say("By reason"), when(all.Counted < all.Total, say(" "), quiet(say("of the newest "+count(all.Counted))))),
		scroll("rows", heads("#Letters", "Trigger or scorer", "Reason", "Newest", "Act"), rows(each(all.Groups, func(l *letterGroup) Node {
			selection := []string{"trigger", l.Trigger, "scorer", l.Scorer, "with", l.part()}
			return row(word(l.Trigger)+word(l.Scorer)+word(l.Reason), h.Th(h.Scope("row"), h.Class("num"), anchor(l.address(), say(count(l.Count)))), cell(letterOwner(&l.Newest)), cell(say(titled(l.Reason))), cell(v.ago(l.Newest.Written)),
				acts(v.Act("replay-letters", selection...), say(" "), v.Act("drop-letters", selection...)))
		}))))
}

// letterOwner is the trigger or the scorer of a dead letter.
func letterOwner(l *api.DeadLetter) Node {
	switch {
	case l.Trigger != "":
		return triggerLink(l.Trigger)
	case l.Scorer != "":
		return list(say("scorer "), scorerLink(l.Scorer))
	}
	return dash()
}

func showLetters(v *visit, l *letterList) Node {
	parts := list(h.H2(say("Dead letters "), quiet(say(count(l.Total)))),
		filter("/ui/dead-letters", v.input("Trigger", "trigger", "12", ""), v.input("Scorer", "scorer", "10", ""), v.input("Reason has", "reason", "16", ""), v.input("Type", "type", "12", ""),
			v.input("Key", "key", "12", ""), v.input("Since", "since", "8", "-1h"), submitButton("Filter"), when(l.Filtered, say(" "), anchor("/ui/dead-letters", say("All dead letters")))))
	switch {
	case len(l.DeadLetters.DeadLetters) == 0 && l.Filtered:
		return list(parts, empty("No open dead letter matches this filter."))
	case len(l.DeadLetters.DeadLetters) == 0:
		return list(parts, empty("No dead letter is open. An event becomes one if all attempts to deliver or to score it fail."))
	}
	all := "all " + count(l.Total) + " "
	if l.Filtered {
		all += "of this filter"
	}
	return list(parts, actions(v.Act("replay-letters", l.Selection...), say(" "), v.Act("drop-letters", l.Selection...), say(" "), quiet(say(all))),
		scroll("rows", heads("Dead letter", "State", "Written", "Trigger or scorer", "Key", "Type", "#Tried", "Reason"), rows(each(l.DeadLetters.DeadLetters, func(one *api.DeadLetter) Node {
			return row(one.ID, rowName(letterLink(one.ID)), cell(badge(one.State)), cell(v.ago(one.Written)), cell(letterOwner(one)), cell(keyLink(one.Key)), cell(text(one.Type)), figure(say(strconv.Itoa(one.Tried))), cell(say(word(one.Reason))))
		}))), pager("rows", l.NextURL, l.FirstURL))
}

func showLetter(v *visit, w *api.WholeLetter) Node {
	l := &w.Letter
	return list(lead(badge(l.State), say(" "+titled(l.Reason))), v.letterActions(w), v.receipt(w.Receipt),
		facts(
			fact("Written", v.ago(l.Written)),
			when(l.Trigger != "", fact("Trigger", triggerLink(l.Trigger))),
			when(l.Scorer != "", fact("Scorer", anchor(scorerURL(l.Scorer), text(l.Scorer)))),
			fact("Key", keyLink(l.Key)), fact("Type", text(l.Type)),
			fact("Event at", streamLink(l.Source.Stream), say(fmt.Sprintf("/%d/%d", l.Source.Partition, l.Source.Offset))),
			fact("Dead letter at", say(fmt.Sprintf("%s/%d/%d", l.Position.Stream, l.Position.Partition, l.Position.Offset))),
			fact("Attempts", say(strconv.Itoa(l.Tried)))),
		v.attempts(w.Attempts), when(len(w.Event) > 0, h.H2(say("Event")), h.Pre(say(indented(w.Event)))), record(w.Record))
}

func (v *visit) letterActions(w *api.WholeLetter) Node {
	var all g.Group
	if w.Letter.State == api.LetterOpen {
		all = append(all, v.Act("replay-letters", "id", w.Letter.ID), say(" "), v.Act("drop-letters", "id", w.Letter.ID))
	}
	if e := eventOf(w.Event); e != nil {
		all = append(all, say(" "), v.ActAs("Publish an edited copy…", "publish", "type", e.Type, "subject", e.Subject, "data", e.Data), say(" "), button(eventURL(e.Source, e.ID), "Causes and effects"))
	}
	return actions(all)
}

// receipt says how a dead letter was resolved.
func (v *visit) receipt(r *api.Receipt) Node {
	if r == nil {
		return nil
	}
	return h.P(h.Class("problem result"), say(string(r.Action)+" "), v.ago(r.At), by(r.By), say(": "+string(r.Outcome)), when(r.Reason != "", say(", "+titled(r.Reason))),
		when(r.NewLetter != "", say("; new dead letter "), letterLink(r.NewLetter)))
}

func (v *visit) attempts(all []api.Attempt) Node {
	if len(all) == 0 {
		return nil
	}
	return list(h.H2(say("Attempts")), scroll("", heads("At", "#Took", "Status", "Error", "Answer"), rows(each(all, func(a *api.Attempt) Node {
		return h.Tr(cell(v.ago(a.At)), figure(say(duration(a.TookSeconds))), cell(when(a.Status != 0, say(strconv.Itoa(a.Status)))), cell(say(titled(a.Error))), cell(when(a.Answer != "", h.Code(say(titled(a.Answer))))))
	}))))
}

// record shows a record that is not an event.
func record(r *api.Record) Node {
	if r == nil {
		return nil
	}
	return list(h.H2(say("Record")), h.P(say("The record is not an event.")), facts(fact("Key", text(string(r.Key))), fact("Size", say(size(len(r.Value)))), each(r.Headers, func(one *api.Header) Node {
		return h.Div(h.Dt(text(one.Key)), h.Dd(text(string(one.Value))))
	})), h.Pre(say(titled(fmt.Sprintf("%q", r.Value)))))
}
