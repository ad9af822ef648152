package dashboard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"tidemill.dev/api"
)

func streamPages() []*page {
	return []*page{
		{path: "/ui/streams", file: "streams", nav: "/ui/streams", title: named("Streams"), regions: []region{
			{"streams", "streams", func(v *visit) (any, error) { return get[api.Streams](v, "/api/v1/streams", nil) }},
		}},
		{path: "/ui/streams/{stream}", file: "stream", nav: "/ui/streams", title: func(v *visit) string { return "Stream " + word(v.PathValue("stream")) }, regions: []region{
			{"stream", "streams", func(v *visit) (any, error) {
				return get[api.Stream](v, "/api/v1/streams/"+v.PathValue("stream"), nil)
			}},
			{"history", "streams", loadStreamHistory},
			{"events", "", loadEvents},
		}},
	}
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
func loadEvents(v *visit) (any, error) {
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
	return eventList{Events: readEvents(body), From: from, Where: v.query("where")}, nil
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
