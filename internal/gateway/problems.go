package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/internal/gateway/access"
)

// The problems are made here and nowhere else, so that one slug always has one
// title and one status.

func problem(slug string, status int, title, detail string) *api.Problem {
	return &api.Problem{Type: api.ProblemBase + slug, Title: title, Status: status, Detail: detail}
}

func notFound(path string) *api.Problem {
	return problem(api.NotFound, http.StatusNotFound, "there is nothing here",
		fmt.Sprintf("path %q: publish to /events or /streams/{stream}, read under /api/v1; /api/v1/openapi.json has all paths", clip(path)))
}

func methodNotAllowed(method, path, allow string) *api.Problem {
	return problem(api.MethodNotAllowed, http.StatusMethodNotAllowed, "the method is not for this path",
		fmt.Sprintf("%q %q: use %s", clip(method), clip(path), allow))
}

func invalidRequest(detail string) *api.Problem {
	return problem(api.InvalidRequest, http.StatusBadRequest, "the request cannot be understood", detail)
}

func headersTooLarge(limit int) *api.Problem {
	return problem(api.HeadersTooLarge, http.StatusRequestHeaderFieldsTooLarge, "the headers are too large",
		fmt.Sprintf("more than %d bytes of headers: publish an event with large attributes in structured mode", limit))
}

// unreadable is the problem of what a reader of the binding refused.
func unreadable(err error) *api.Problem {
	if errors.As(err, new(*cehttp.UnsupportedError)) {
		return problem(api.UnsupportedType, http.StatusUnsupportedMediaType, "the form of the body is not read here", err.Error())
	}
	p := problem(api.InvalidEvent, http.StatusBadRequest, "this is no CloudEvent that can be stored", err.Error())
	p.Attribute = attributeOf(err)
	return p
}

// attributeOf is the attribute that an error is about, if it is about one.
func attributeOf(err error) string {
	var fault interface {
		error
		Attribute() string
	}
	if errors.As(err, &fault) {
		return fault.Attribute()
	}
	return ""
}

func tooSlow(l *Limits) *api.Problem {
	return problem(api.TooSlow, http.StatusRequestTimeout, "the body did not come in time",
		fmt.Sprintf("a request must be here within %s, a large body at %d bytes a second", l.ReadHeader+l.BodyGrace, l.BodyRate))
}

func tooLarge(detail string) *api.Problem {
	return problem(api.TooLarge, http.StatusRequestEntityTooLarge, "too large", detail)
}

func (g *Gateway) eventTooLarge() *api.Problem {
	return tooLarge(fmt.Sprintf("an event may have %d bytes: keep the bulk in a store and publish where it lies", g.opt.Limits.Event))
}

func (g *Gateway) batchTooLarge() *api.Problem {
	return tooLarge(fmt.Sprintf("a batch may have %d bytes: publish it in parts", g.opt.Limits.Batch))
}

func tooMany(limit int) *api.Problem {
	return tooLarge(fmt.Sprintf("a batch may have %d events: publish it in parts", limit))
}

// unknownStream names the streams that there are for whoever asks.
func unknownStream(stream string, known []string) *api.Problem {
	p := problem(api.UnknownStream, http.StatusNotFound, "there is no such stream",
		fmt.Sprintf("stream %q is not in the config: use one of those listed, or add it there", clip(stream)))
	p.Streams = known
	return p
}

// noSuchStream names the streams that there are for whoever looks.
func noSuchStream(stream string, known []string) *api.Problem {
	p := problem(api.UnknownStream, http.StatusNotFound, "there is no such stream",
		fmt.Sprintf("stream %q is not in Kafka: use one of those listed", clip(stream)))
	p.Streams = known
	return p
}

func refusedBatch(status, refused int, answers []api.Answer) *api.Problem {
	detail := "the others are stored; publishing the whole batch again is safe, as repeats are recognised"
	if refused == len(answers) {
		detail = "nothing is stored"
	}
	p := problem(api.Refused, status, "events of a batch are refused",
		fmt.Sprintf("%d of %d events: see events for the reason of each; %s", refused, len(answers), detail))
	p.Events = answers
	return p
}

func busy(limit int64) *api.Problem {
	return unavailable(fmt.Sprintf("requests of %d bytes are under way already; send it again a little later", limit))
}

func callerBusy(limit int64) *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at once",
		fmt.Sprintf("you have requests of %d bytes under way already: wait for some of their answers", limit))
}

func callerTails(limit int) *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at once",
		fmt.Sprintf("you have %d tails open, and the others are for other callers: end one of yours first", limit))
}

func unavailable(detail string) *api.Problem {
	return problem(api.Unavailable, http.StatusServiceUnavailable, "not now", detail)
}

// inDoubt says how long it was waited for. That is not always the limit: the
// producer may give up before it, and so may a gateway that closes.
func inDoubt(id string, after time.Duration) *api.Problem {
	return problem(api.InDoubt, http.StatusServiceUnavailable, "it is not known whether the event is stored",
		fmt.Sprintf("event %q: Kafka did not say within %s; publish it again under the same id and source: the first counts", clip(id), roughly(after)))
}

func roughly(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

func internalFault() *api.Problem {
	return problem(api.Internal, http.StatusInternalServerError, "a fault of the gateway's own", "its log says more; report it")
}

// clip keeps hostile text from filling an answer.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func unknownLetter(id string) *api.Problem {
	return problem(api.UnknownLetter, http.StatusNotFound, "there is no such dead letter",
		fmt.Sprintf("no dead letter's id is %q or begins so, or you may not see it; GET /api/v1/dead-letters lists those that are open", clip(id)))
}

func unknownSchedule(name string) *api.Problem {
	return problem(api.UnknownSchedule, http.StatusNotFound, "there is no such schedule",
		fmt.Sprintf("schedule %q is not in the config; GET /api/v1/schedules lists those there are", clip(name)))
}

func unknownTrigger(name string) *api.Problem {
	return problem(api.UnknownTrigger, http.StatusNotFound, "there is no such trigger",
		fmt.Sprintf("trigger %q is not in the config; GET /api/v1/triggers lists those there are", clip(name)))
}

func noStore() *api.Problem {
	return problem(api.NotFound, http.StatusNotFound, "there is nothing here",
		"this gateway has no object store, and so no data: ask one that has, or start this one with one")
}

// unknownData says what is not in the store.
func unknownData(detail string) *api.Problem {
	return problem(api.UnknownData, http.StatusNotFound, "that is not in the store", detail)
}

func conflict(detail string) *api.Problem {
	return problem(api.Conflict, http.StatusConflict, "it is there already", detail)
}

// The problems of who asks for what.

func unauthenticated(detail string) *api.Problem {
	return problem(api.Unauthenticated, http.StatusUnauthorized, "who are you?", detail)
}

func forbidden(detail string) *api.Problem {
	return problem(api.Forbidden, http.StatusForbidden, "not allowed", detail)
}

func missingRole(name string, needed access.Role) *api.Problem {
	return forbidden(fmt.Sprintf("%q lacks the role %s: have it added where the token is listed", clip(name), needed))
}

func strangeHost(host string) *api.Problem {
	return forbidden(fmt.Sprintf("host %q: a door without tokens answers for localhost and loopback addresses only; start it with --access to have it answer for others", clip(host)))
}

func strangeOrigin(origin string) *api.Problem {
	return forbidden(fmt.Sprintf("a page of %q asks in a browser: a door without tokens takes nothing from pages of others; ask with --access and a token", clip(origin)))
}

// forbiddenEvent is the problem of an event that its caller may not publish.
func forbiddenEvent(err error) *api.Problem {
	p := forbidden(err.Error())
	p.Attribute = attributeOf(err)
	return p
}

func forgedSignature(as, name string) *api.Problem {
	p := forbidden(fmt.Sprintf("authid is %q, but you are %q: leave it out", clip(as), name))
	p.Attribute = tidemill.AttrAuthID
	return p
}

func reserved(detail string) *api.Problem {
	return problem(api.Reserved, http.StatusForbidden, "only Tidemill itself may do that", detail)
}

func reservedStream(stream string) *api.Problem {
	return reserved(fmt.Sprintf("stream %s is written by Tidemill alone: publish to events or to a stream of your config", stream))
}

func reservedEvent(v *broker.View, err error) *api.Problem {
	p := reserved(err.Error())
	p.Attribute = "source"
	if tidemill.ReservedType(v.Type) {
		p.Attribute = "type"
	}
	return p
}
