package web

import (
	"fmt"
	"strconv"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
	"tidemill.dev/triggers/match"
)

// tailQuery is what a caller asks of a tail.
type tailQuery struct {
	start  broker.Start
	resume tail.Place    // nil without an id
	where  *match.Filter // nil is every event
	toEnd  bool
	limit  int // of events that are sent; 0 is none
}

// mostLooked is how many bytes a condition may look at for one event: a tenth of
// a second's work, and far more than a condition that is meant needs. A reader
// may have many tails, and each reads the worst event that anybody has published.
const mostLooked = 64 << 20

const lastEventID = "Last-Event-ID"

// tailParameters are those that a tail knows.
func tailParameters() []string { return []string{"follow", "from", "lastEventId", "limit", "where"} }

// readTailQuery reads the parameters. The id of the header is newer than that of
// the query: a browser repeats the address and adds the header.
func readTailQuery(r *request, now time.Time) (q tailQuery, p *api.Problem) {
	values, p := r.query(tailParameters())
	if p != nil {
		return q, p
	}
	var err error
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
	if where := values.Get("where"); where != "" {
		if q.where, err = match.CompileFor(where, mostLooked); err != nil {
			return q, badParameter("where", err.Error())
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
