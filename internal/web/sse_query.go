package web

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
)

// tailQuery is what a caller asks of a tail.
type tailQuery struct {
	start  broker.Start
	resume tail.Place // nil without an id
	toEnd  bool
	limit  int // 0 is none
}

const lastEventID = "Last-Event-ID"

// tailParameters are those that a tail knows. Another is a slip, and a slip that
// is passed over shows the wrong events.
func tailParameters() []string { return []string{"follow", "from", "lastEventId", "limit"} }

// readTailQuery reads the parameters. The id of the header is newer than that of
// the query: a browser repeats the address and adds the header.
func readTailQuery(r *request, now time.Time) (q tailQuery, p *api.Problem) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, invalidRequest("the query of the address cannot be read: " + err.Error())
	}
	for name, all := range values {
		switch {
		case !slices.Contains(tailParameters(), name):
			return q, badParameter(name, "there is no such parameter; there are "+strings.Join(tailParameters(), ", "))
		case len(all) > 1:
			return q, badParameter(name, "it is given twice; give it once")
		}
	}
	if q.start, err = tail.ParseFrom(orElse(values.Get("from"), "end"), now); err != nil {
		return q, badParameter("from", err.Error()+"; in an address + is %2B")
	}
	switch follow := orElse(values.Get("follow"), "true"); follow {
	case "true":
	case "false":
		q.toEnd = true
	default:
		return q, badParameter("follow", fmt.Sprintf("%q is neither true nor false", clip(follow)))
	}
	if limit := values.Get("limit"); limit != "" {
		if q.limit, err = strconv.Atoi(limit); err != nil || q.limit < 1 {
			return q, badParameter("limit", fmt.Sprintf("%q is not a number of events; give 1 or more, or leave it out", clip(limit)))
		}
	}
	return q, q.readPlace(r, values.Get("lastEventId"))
}

func (q *tailQuery) readPlace(r *request, inQuery string) *api.Problem {
	name, id := "lastEventId", inQuery
	if header := r.Header.Get(lastEventID); header != "" {
		name, id = lastEventID, header
	}
	if id == "" {
		return nil
	}
	place, err := tail.ParseToken(id, r.value)
	if err != nil {
		return badParameter(name, err.Error())
	}
	q.resume = place
	return nil
}

func badParameter(name, why string) *api.Problem {
	return invalidRequest(fmt.Sprintf("%s: %s", clip(name), why))
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
