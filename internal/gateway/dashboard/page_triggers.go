package dashboard

import (
	"fmt"
	"net/url"
	"time"

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
