package dashboard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func streamPages() []*page {
	return []*page{
		{path: "/ui/streams", nav: "/ui/streams", title: named("Streams"), regions: []region{part("streams", "streams", asked[api.Streams]("/api/v1/streams"), showStreams)},
			main: still(func(v *view) Node { return list(h.H1(say(v.Title)), actions(v.Act("publish")), v.Region("streams")) })},
		{path: "/ui/streams/{stream}", nav: "/ui/streams", title: func(v *visit) string { return "Stream " + word(v.PathValue("stream")) }, main: still(func(v *view) Node {
			return list(h.H1(say(v.Title)), actions(v.Act("publish", "stream", v.PathValue("stream"))), v.Region("stream"), v.Region("history"), v.Region("events"))
		}), regions: []region{
			part("stream", "streams", asked[api.Stream]("/api/v1/streams/{stream}"), showStream),
			part("history", "streams", loadStreamHistory, showHistory),
			part("events", "", loadEvents, showEvents),
		}},
	}
}

// mostGroupsShown is the number of groups in a row of the table of streams.
const mostGroupsShown = 4

func showStreams(_ *visit, all *api.Streams) Node {
	if len(all.Streams) == 0 {
		return empty("There are no streams.")
	}
	return scroll("rows", heads("Stream", "#Events a second", "#Events", "#Size", "#Partitions", "Retention", "Groups and lag"), rows(each(all.Streams, func(s *api.Stream) Node {
		shown := s.Groups[:min(len(s.Groups), mostGroupsShown)]
		return row(s.Name, rowName(streamLink(s.Name)), figure(say(rate(s.Rate))), figure(say(about(s.Estimated)+count(s.Records))), figure(say(size(s.Bytes))), figure(say(strconv.Itoa(len(s.Partitions)))), cell(say(duration(s.RetentionSeconds))),
			cell(each(shown, func(of *api.Group) Node {
				return list(together(text(of.Group), say(" lag "), h.Span(h.Class("num"), say(about(of.Estimated)+count(of.Lag))), when(of.Lost != 0, say(" "), badge("lost"), say(" "+count(of.Lost)))), say(" "))
			}), when(len(s.Groups) > len(shown), quiet(say(fmt.Sprintf("and %d more", len(s.Groups)-len(shown)))))))
	})))
}

// about marks a number that is an estimate.
func about(estimated bool) string {
	if estimated {
		return "about "
	}
	return ""
}

func showStream(_ *visit, s *api.Stream) Node {
	events := "events"
	if s.Estimated {
		events = "events, about"
	}
	groups := nothing(say("No group of this install reads it."))
	if len(s.Groups) > 0 {
		groups = h.Table(h.Class("rows"), heads("Group", "#Lag", "#Lost"), rows(each(s.Groups, func(of *api.Group) Node {
			return row(of.Group, rowName(text(of.Group)), figure(say(about(of.Estimated)+count(of.Lag))), figure(when(of.Lost != 0, badge("lost"), say(" ")), say(count(of.Lost))))
		})))
	}
	return list(h.Div(h.Class("cards"), card(rate(s.Rate), say("events a second")), card(count(s.Records), say(events)), card(size(s.Bytes), say("stored")), card(duration(s.RetentionSeconds), say("retention"))),
		h.H2(say("Groups")), groups,
		details(fmt.Sprintf("%d partitions", len(s.Partitions)), h.Table(h.Class("narrow"), heads("#No.", "#First offset", "#End"), rows(each(s.Partitions, func(p *api.Partition) Node {
			return h.Tr(h.Th(h.Scope("row"), h.Class("num"), say(strconv.Itoa(int(p.Partition)))), figure(say(count(p.Start))), figure(say(count(p.End))))
		})))))
}

// eventRow is an event of a stream with those of its attributes that a table shows.
type eventRow struct {
	api.Tailed
	ID, Source, Type, Subject string
}

// eventList has some events of a stream.
type eventList struct {
	Events []eventRow
	From   string
	Where  string
}

const usualFrom = "-1h"

// loadEvents reads the first events since the start that the form names.
func loadEvents(v *visit) (*eventList, error) {
	q := v.pick("where")
	from := v.query("from")
	if from == "" {
		from = usualFrom
	}
	q.Set("from", from)
	q.Set("follow", "false")
	q.Set("limit", "50")
	status, body, err := v.ask(http.MethodGet, "/api/v1/streams/"+v.PathValue("stream")+"/events", q, nil)
	if err == nil {
		err = problemOf(status, body)
	}
	if err != nil {
		return nil, err
	}
	return &eventList{Events: readEvents(body), From: from, Where: v.query("where")}, nil
}

func showEvents(v *visit, l *eventList) Node {
	name := v.PathValue("stream")
	parts := list(h.H2(say("Events")), filter(streamURL(name), inputOf("From", "from", l.From, "14", "-1h, an offset, beginning"),
		inputOf("Condition", "where", l.Where, "40", "type = 'message' AND subject = 'bot-42'"), submitButton("Show")),
		g.El("tm-tail", h.Data("src", "/api/v1/streams/"+url.PathEscape(name)+"/events"), h.Data("where", l.Where)))
	if len(l.Events) == 0 {
		return list(parts, hint{"No event from there matches.", "To publish one:", "tidemill publish bot-created --subject bot-42"}.node())
	}
	return list(parts, scroll("rows events", heads("Received", "#Partition/offset", "Type", "Subject", "Event"), rows(each(l.Events, func(e *eventRow) Node {
		place, typ := fmt.Sprintf("%d/%d", e.Partition, e.Offset), Node(text(e.Type))
		if e.Error != "" {
			typ = list(badge("failed"), say(" "+word(e.Error)))
		}
		var whole Node
		if len(e.Event) > 0 {
			whole = h.Details(h.Summary(text(e.ID)), h.Pre(say(indented(e.Event))), h.P(eventLink(e.Source, e.ID), say(" "), quiet(say("causes and effects"))))
		}
		return row(place, cell(v.ago(e.Received)), figure(say(place)), cell(typ), cell(keyLink(e.Subject)), cell(whole))
	}))), note(say(fmt.Sprintf("The first %d events from there.", len(l.Events)))))
}

// readEvents reads the events of a tail's text.
func readEvents(body []byte) (all []eventRow) {
	s := bufio.NewScanner(bytes.NewReader(body))
	s.Buffer(nil, maxAnswer)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		var row eventRow
		if !ok || json.Unmarshal([]byte(data), &row.Tailed) != nil || row.Event == nil && row.Error == "" {
			continue
		}
		var e struct{ ID, Source, Type, Subject string }
		_ = json.Unmarshal(row.Event, &e) // an unreadable record has no attributes
		row.ID, row.Source, row.Type, row.Subject = e.ID, e.Source, e.Type, e.Subject
		all = append(all, row)
	}
	return all
}
