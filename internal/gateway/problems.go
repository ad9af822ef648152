package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
	"tidemill.dev/config/spelling"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/oip/rest"
)

// This file makes all problems, so that each slug has one title and one status.

func problem(slug string, status int, title, detail string) *api.Problem {
	return &api.Problem{Type: api.ProblemBase + slug, Title: title, Status: status, Detail: detail}
}

func notFound(path string) *api.Problem {
	if rest.Within(path) {
		return problem(api.NotFound, http.StatusNotFound, "there is no such path", fmt.Sprintf("there is nothing at %q: %s", clipText(path), rest.Paths))
	}
	return problem(api.NotFound, http.StatusNotFound, "there is no such path",
		fmt.Sprintf("path %q: publish to /events or /streams/{stream}, read under /api/v1; /api/v1/openapi.json has all paths", clipText(path)))
}

func methodNotAllowed(method, path, allow string) *api.Problem {
	return problem(api.MethodNotAllowed, http.StatusMethodNotAllowed, "the path does not have this method",
		fmt.Sprintf("%q %q: use %s", clipText(method), clipText(path), allow))
}

func invalidRequest(detail string) *api.Problem {
	return problem(api.InvalidRequest, http.StatusBadRequest, "the request is invalid", detail)
}

func headersTooLarge(limit int) *api.Problem {
	return problem(api.HeadersTooLarge, http.StatusRequestHeaderFieldsTooLarge, "the headers are too large",
		fmt.Sprintf("more than %d bytes of headers: publish an event with large attributes in structured mode", limit))
}

// invalidEvent is the problem of a request that is not a valid event.
func invalidEvent(err error) *api.Problem {
	if errors.As(err, new(*cehttp.UnsupportedError)) {
		return problem(api.UnsupportedType, http.StatusUnsupportedMediaType, "the content type is not accepted", err.Error())
	}
	p := problem(api.InvalidEvent, http.StatusBadRequest, "this is not a CloudEvent that can be stored", err.Error())
	p.Attribute = attributeOf(err)
	return p
}

// attributeOf returns the attribute that an error is about; empty if there is none.
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
	return problem(api.TooSlow, http.StatusRequestTimeout, "the body took too long",
		fmt.Sprintf("a request must be complete within %s, a large body at %d bytes a second", l.ReadHeader+l.BodyGrace, l.BodyRate))
}

func tooLarge(detail string) *api.Problem {
	return problem(api.TooLarge, http.StatusRequestEntityTooLarge, "too large", detail)
}

func (g *Gateway) eventTooLarge() *api.Problem {
	return tooLarge(fmt.Sprintf("an event may have %d bytes: put large data into a store and publish its address", g.opt.Limits.Event))
}

func (g *Gateway) batchTooLarge() *api.Problem {
	return tooLarge(fmt.Sprintf("a batch may have %d bytes: publish it in parts", g.opt.Limits.Batch))
}

func tooMany(limit int) *api.Problem {
	return tooLarge(fmt.Sprintf("a batch may have %d events: publish it in parts", limit))
}

// unknownStream is the problem of publishing to a stream that is not in the config.
func unknownStream(stream string, known []string) *api.Problem {
	p := problem(api.UnknownStream, http.StatusNotFound, "there is no such stream",
		fmt.Sprintf("stream %q is not in the config: use one of those listed, or add it there", clipText(stream)))
	p.Streams = known
	return p
}

// noSuchStream is the problem of reading a stream that is not in Kafka.
func noSuchStream(stream string, known []string) *api.Problem {
	p := problem(api.UnknownStream, http.StatusNotFound, "there is no such stream",
		fmt.Sprintf("stream %q is not in Kafka: use one of those listed", clipText(stream)))
	p.Streams = known
	return p
}

func refusedBatch(status, refused int, answers []api.Answer) *api.Problem {
	detail := "the others are stored; publishing the whole batch again is safe, as repeats are recognised"
	if refused == len(answers) {
		detail = "nothing is stored"
	}
	p := problem(api.Refused, status, "events of the batch are refused",
		fmt.Sprintf("%d of %d events: see events for the reason of each; %s", refused, len(answers), detail))
	p.Events = answers
	return p
}

func busy(limit int64) *api.Problem {
	return unavailable(fmt.Sprintf("requests of %d bytes are being handled already; send it again later", limit))
}

func callerBusy(limit int64) *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at the same time",
		fmt.Sprintf("you have requests of %d bytes without an answer: wait for some of the answers", limit))
}

func tooManyOpen(limit int, what string) *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at the same time",
		fmt.Sprintf("you have %d %s open, and the rest is for other callers: close one of yours first", limit, what))
}

func diskFull(detail string) *api.Problem {
	return problem(api.DiskFull, http.StatusInsufficientStorage, "the disk is full", detail)
}

func unavailable(detail string) *api.Problem {
	return problem(api.Unavailable, http.StatusServiceUnavailable, "temporarily unavailable", detail)
}

// inDoubt reports the time for which the request waited. That time may be shorter than the limit,
// because the producer or a closing gateway may stop waiting earlier.
func inDoubt(id string, after time.Duration) *api.Problem {
	return problem(api.InDoubt, http.StatusServiceUnavailable, "it is not known whether the event is stored",
		fmt.Sprintf("event %q: Kafka did not confirm it within %s; publish it again with the same id and source: it is stored at most once", clipText(id), roughly(after)))
}

func roughly(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

func internalFault() *api.Problem {
	return problem(api.Internal, http.StatusInternalServerError, "a fault of the gateway", "its log has the details; report it")
}

// clipText shortens a text, so that hostile text does not fill an answer.
func clipText(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// didYouMean suggests the name that is nearest among those of the config; empty if none is near.
func didYouMean[T any](name string, all []T, nameOf func(*T) string) string {
	known := make([]string, len(all))
	for i := range all {
		known[i] = nameOf(&all[i])
	}
	if near, ok := spelling.Nearest(name, known); ok {
		return " did you mean " + near + "?"
	}
	return ""
}

func unknownLetter(id string) *api.Problem {
	return problem(api.UnknownLetter, http.StatusNotFound, "there is no such dead letter",
		fmt.Sprintf("no dead letter's id is %q or begins with it, or you may not see it; GET /api/v1/dead-letters lists those that are open, and one that was replayed or dropped is found by its whole id", clipText(id)))
}

func (g *Gateway) unknownSchedule(name string) *api.Problem {
	return problem(api.UnknownSchedule, http.StatusNotFound, "there is no such schedule",
		fmt.Sprintf("schedule %q is not in the config;%s GET /api/v1/schedules lists the schedules", clipText(name), didYouMean(name, g.opt.Config().Schedules, func(c *config.Schedule) string { return c.Name })))
}

func (g *Gateway) unknownTrigger(name string) *api.Problem {
	return problem(api.UnknownTrigger, http.StatusNotFound, "there is no such trigger",
		fmt.Sprintf("trigger %q is not in the config;%s GET /api/v1/triggers lists the triggers", clipText(name), didYouMean(name, g.opt.Config().Triggers, func(c *config.Trigger) string { return c.Name })))
}

func noStore() *api.Problem {
	return problem(api.NotFound, http.StatusNotFound, "there is no such path",
		"this gateway has no object store, so it has no data: ask another gateway, or start this one with --store")
}

// unknownData is the problem of data that is not in the store.
func unknownData(detail string) *api.Problem {
	return problem(api.UnknownData, http.StatusNotFound, "it is not in the store", detail)
}

func conflict(detail string) *api.Problem {
	return problem(api.Conflict, http.StatusConflict, "it exists already", detail)
}

// The problems of access.

func unauthenticated(detail string) *api.Problem {
	return problem(api.Unauthenticated, http.StatusUnauthorized, "no valid token", detail)
}

func forbidden(detail string) *api.Problem {
	return problem(api.Forbidden, http.StatusForbidden, "not allowed", detail)
}

func missingRole(name string, needed access.Role) *api.Problem {
	return forbidden(fmt.Sprintf("%q lacks the role %s: add it in the access file", clipText(name), needed))
}

func strangeHost(host string) *api.Problem {
	return forbidden(fmt.Sprintf("host %q: a gateway without tokens answers only for localhost and loopback addresses; start it with --access for other hosts", clipText(host)))
}

func strangeOrigin(origin string) *api.Problem {
	return forbidden(fmt.Sprintf("the request is from a page of %q in a browser: a gateway without tokens refuses pages of other origins; start it with --access, and send a token", clipText(origin)))
}

// strangeForm is the problem of a form that another site's page sends to the dashboard.
func strangeForm(origin string) *api.Problem {
	return forbidden(fmt.Sprintf("the form is from a page of %q: open the page of this gateway, and send the form from there", clipText(origin)))
}

// forbiddenEvent is the problem of an event that its caller may not publish.
func forbiddenEvent(err error) *api.Problem {
	p := forbidden(err.Error())
	p.Attribute = attributeOf(err)
	return p
}

func forgedSignature(as, name string) *api.Problem {
	p := forbidden(fmt.Sprintf("authid is %q, but you are %q: leave it out", clipText(as), name))
	p.Attribute = tidemill.AttrAuthID
	return p
}

func reserved(detail string) *api.Problem {
	return problem(api.Reserved, http.StatusForbidden, "only Tidemill may do that", detail)
}

func reservedStream(stream string) *api.Problem {
	return reserved(fmt.Sprintf("only Tidemill writes stream %s: publish to events or to a stream of your config", stream))
}

func reservedEvent(v *broker.View, err error) *api.Problem {
	p := reserved(err.Error())
	p.Attribute = "source"
	if tidemill.Reserved(v.Type, "") != nil {
		p.Attribute = "type"
	}
	return p
}

// The problems of runs, recipes and pools.

func noRuns() *api.Problem {
	return problem(api.NoRuns, http.StatusNotImplemented, "this gateway has no runs",
		"runs need Redis and a store: start this gateway with --redis and --store, or ask another one")
}

func unknownRun(id string) *api.Problem {
	return problem(api.UnknownRun, http.StatusNotFound, "there is no such run",
		fmt.Sprintf("no run's id is %q or begins with it, or you may not see it, or its key has had so many newer runs that only the stream facts has it; GET /api/v1/runs lists the runs", clipText(id)))
}

func (g *Gateway) unknownRecipe(name string) *api.Problem {
	return problem(api.UnknownRecipe, http.StatusNotFound, "there is no such recipe",
		fmt.Sprintf("recipe %q is not in the config;%s GET /api/v1/recipes lists the recipes", clipText(name), didYouMean(name, g.opt.Config().Recipes, func(c *config.Recipe) string { return c.Name })))
}

func (g *Gateway) unknownPool(name string) *api.Problem {
	return problem(api.UnknownPool, http.StatusNotFound, "there is no such pool",
		fmt.Sprintf("pool %q is not in the config;%s GET /api/v1/pools lists the pools", clipText(name), didYouMean(name, g.opt.Config().Pools, func(c *config.Pool) string { return c.Name })))
}

// catchingUp is the problem of a question that the ledger cannot answer now.
func (g *Gateway) catchingUp() *api.Problem {
	s := g.opt.Ledger.Status()
	if s.Stopped {
		return problem(api.LedgerStopped, http.StatusServiceUnavailable, "the ledger has stopped", fmt.Sprintf("the ledger has stopped: %v", s.Err))
	}
	return unavailable(s.Progress() + "; try again later")
}

// ledgerProblem is the problem of a failed question to the ledger.
func (g *Gateway) ledgerProblem(ctx context.Context, err error) *api.Problem {
	switch {
	case errors.Is(err, ledger.ErrCatchingUp):
		return g.catchingUp()
	case errors.Is(err, ledger.ErrNoPlace):
		return badParameter("after", "it is not a position in the list; give a page's next, or leave it out")
	}
	if ctx.Err() == nil {
		g.log.Warn("gateway: reading the ledger failed; the request fails", "reason", err)
	}
	return unavailable("the state of the runs cannot be read now: Redis or Kafka is down; try again later")
}

// runRequestProblem is the problem of a request for runs that could not be published.
func (g *Gateway) runRequestProblem(ctx context.Context, run string, err error, began time.Time) *api.Problem {
	if errors.Is(err, broker.ErrInDoubt) {
		p := inDoubt(run, time.Since(began))
		p.Detail = fmt.Sprintf("run %q: Kafka did not confirm the request within %s; send it again, with the same %s if you gave one: it is written once",
			clipText(run), roughly(time.Since(began)), api.HeaderIdempotencyKey)
		return p
	}
	return g.ledgerProblem(ctx, err)
}

// The problems of models and their promotions.

func number(n int) string { return strconv.Itoa(n) }

func unknownModel(name string) *api.Problem {
	hint := ""
	if strings.Contains(name, "@") {
		hint = "; a version after the @ is a number, champion, previous or newest"
	}
	return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
		fmt.Sprintf("no model's name is %q, or you may not see it%s; GET /api/v1/models lists the models", clipText(name), hint))
}

func unknownVersion(name, which string) *api.Problem {
	return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
		fmt.Sprintf("model %q has no version %s, or it is no longer stored; GET /api/v1/model?model=%s lists the versions", clipText(name), clipText(which), clipText(name)))
}

func notPromoted(name, why string) *api.Problem {
	return problem(api.NotPromoted, http.StatusConflict, "the request is refused",
		fmt.Sprintf("%s; GET /api/v1/model?model=%s shows its state", why, clipText(name)))
}

func championMoved(why string) *api.Problem {
	return problem(api.ChampionMoved, http.StatusConflict, "the champion has changed",
		why+"; send it again if you still want it")
}

// modelRequestProblem is the problem of a request for a model that failed. The outermost context of
// the error is removed, because it only repeats the request.
func (g *Gateway) modelRequestProblem(ctx context.Context, model string, err error, began time.Time) *api.Problem {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	switch {
	case errors.Is(err, registry.ErrUnknown):
		return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
			fmt.Sprintf("%s; GET /api/v1/model?model=%s lists the versions that are stored", err, clipText(model)))
	case errors.Is(err, registry.ErrMoved):
		return championMoved(err.Error())
	case errors.Is(err, registry.ErrRefused):
		return notPromoted(model, err.Error())
	case errors.Is(err, broker.ErrInDoubt):
		p := inDoubt(model, time.Since(began))
		p.Detail = fmt.Sprintf("model %q: Kafka did not confirm the request within %s; look at the model, or send it again with the same %s: it is written once",
			clipText(model), roughly(time.Since(began)), api.HeaderIdempotencyKey)
		return p
	}
	return g.ledgerProblem(ctx, err)
}

// The problems of scorers.

func (g *Gateway) unknownScorer(name string) *api.Problem {
	return problem(api.UnknownScorer, http.StatusNotFound, "there is no such scorer",
		fmt.Sprintf("scorer %q is not in the config;%s GET /api/v1/scorers lists the scorers", clipText(name), didYouMean(name, g.opt.Config().Scorers, func(c *config.Scorer) string { return c.Name })))
}

func noScoring() *api.Problem {
	return problem(api.NoScoring, http.StatusNotImplemented, "this gateway scores nothing",
		"scoring needs Redis and a store: start this gateway with --redis and --store, or ask another one")
}

// scoreProblem is the problem of an event that the champion could not score.
func (g *Gateway) scoreProblem(ctx context.Context, scorer string, err error) *api.Problem {
	var u *Unanswered
	switch {
	case errors.As(err, &u) && u.NoChampion:
		return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
			err.Error()+"; GET /api/v1/models lists the models")
	case u != nil:
		return problem(api.Unscorable, http.StatusUnprocessableEntity, "the event cannot be scored", err.Error())
	}
	if g.opt.Ledger != nil && errors.Is(err, ledger.ErrCatchingUp) {
		return g.catchingUp()
	}
	if ctx.Err() == nil && !errors.Is(err, infer.ErrNoRoom) {
		g.log.Warn("gateway: scoring failed; the caller gets a 503", "scorer", scorer, "reason", err)
	}
	return unavailable(fmt.Sprintf("scorer %q does not answer: %v; try again later", clipText(scorer), err))
}
