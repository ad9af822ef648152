package dashboard

import (
	"fmt"
	"net/url"
	"time"

	"tidemill.dev/api"
)

// sign says whether the trouble of an alert is seen now. The alerts themselves look at a longer time,
// and at all processes, in Prometheus.
type sign struct {
	Alert, Runbook, Title string
	State                 string // seen, not seen or not known here
	Detail                string
}

const (
	signSeen    = "seen"
	signNot     = "not seen"
	signUnknown = "not known here"
)

// signParts are the answers that the signs are made from. A part that could not be read is nil.
type signParts struct {
	now               time.Time
	ready             *readiness
	triggers          *api.Triggers
	scorers           *api.Scorers
	pools             *api.Pools
	failed, succeeded *int // runs that were requested within an hour
}

func loadSigns(v *visit) ([]sign, error) {
	parts := signParts{now: v.d.opt.Now()}
	if r, err := askReadiness(v); err == nil {
		parts.ready = &r
	}
	parts.triggers = maybe[api.Triggers](v, "/api/v1/triggers", nil)
	parts.scorers = maybe[api.Scorers](v, "/api/v1/scorers", nil)
	parts.pools = maybe[api.Pools](v, "/api/v1/pools", nil)
	parts.failed, parts.succeeded = countRuns(v, "failed"), countRuns(v, "succeeded")
	return parts.signs(), nil
}

// maybe returns an answer, or nil if the API refuses it.
func maybe[T any](v *visit, path string, query url.Values) *T {
	answer, err := get[T](v, path, query)
	if err != nil {
		return nil
	}
	return &answer
}

// mostCounted limits the runs of an hour that are counted.
const mostCounted = 100

func countRuns(v *visit, state string) *int {
	runs := maybe[api.Runs](v, "/api/v1/runs", url.Values{"state": {state}, "since": {"-1h"}, "limit": {fmt.Sprint(mostCounted)}})
	if runs == nil {
		return nil
	}
	return new(len(runs.Runs))
}

// signs lists all alerts, in the order of their urgency.
func (p *signParts) signs() []sign {
	all := []sign{
		{Alert: "TidemillNoActiveController", Runbook: "no-active-controller", Title: "No controller is active"},
		{Alert: "TidemillLedgerStopped", Runbook: "ledger-stopped", Title: "The ledger has stopped"},
		{Alert: "TidemillPublishingRefused", Runbook: "publishing-refused", Title: "The gateway refuses events"},
		{Alert: "TidemillScorerStops", Runbook: "scorer-stops", Title: "A scorer does not continue"},
		{Alert: "TidemillNothingStarts", Runbook: "nothing-starts", Title: "Runs wait, and nothing starts"},
		{Alert: "TidemillOldestEvent", Runbook: "oldest-event", Title: "Events are not delivered"},
		{Alert: "TidemillObserverBehind", Runbook: "observer-behind", Title: "Outcomes and drift are out of date"},
		{Alert: "TidemillDeadLetters", Runbook: "dead-letters", Title: "Dead letters"},
		{Alert: "TidemillRunsFail", Runbook: "runs-fail", Title: "Runs fail"},
		{Alert: "TidemillModelsRefused", Runbook: "models-refused", Title: "Versions are refused"},
		{Alert: "TidemillModelsStale", Runbook: "models-stale", Title: "Models are stale"},
	}
	look := map[string]func() (state, detail string){
		"no-active-controller": func() (string, string) { return p.check("clock") },
		"ledger-stopped":       func() (string, string) { return p.check("runs") },
		"publishing-refused":   p.publishing, "scorer-stops": p.scorersStop, "nothing-starts": p.nothingStarts,
		"oldest-event": p.oldestEvent, "dead-letters": p.deadLetters, "runs-fail": p.runsFail,
	}
	for i := range all {
		all[i].State, all[i].Detail = signUnknown, "Prometheus has the numbers of this alert."
		if f := look[all[i].Runbook]; f != nil {
			all[i].State, all[i].Detail = f()
		}
	}
	return all
}

// check returns the sign of a part that has a check of its own.
func (p *signParts) check(name string) (state, detail string) {
	if p.ready == nil {
		return signUnknown, "The checks cannot be read."
	}
	for _, c := range p.ready.Checks {
		switch {
		case c.Name != name:
		case c.Status == api.OK:
			return signNot, c.Detail
		default:
			return signSeen, c.Detail
		}
	}
	return signUnknown, "This process does not check it."
}

// publishing is seen if a check has failed without which no event is stored.
func (p *signParts) publishing() (state, detail string) {
	for _, name := range []string{"kafka", "streams", "disk"} {
		if state, detail := p.check(name); state == signSeen {
			return state, detail
		}
	}
	return signUnknown, "Kafka and the streams are well. Prometheus has the numbers of this alert."
}

func (p *signParts) scorersStop() (state, detail string) {
	if p.scorers == nil {
		return signUnknown, "The scorers cannot be read."
	}
	for _, s := range p.scorers.Scorers {
		switch {
		case s.Lag == nil || s.Processes == nil:
			state, detail = signUnknown, "The lag or the processes of "+s.Name+" are not known."
		case *s.Lag > 0 && (*s.Processes == 0 || s.Numbers != nil && s.Numbers.Rate == 0):
			return signSeen, fmt.Sprintf("%s events wait for %s, which scores none now.", count(*s.Lag), s.Name)
		}
	}
	if state == "" {
		return signNot, ""
	}
	return state, detail
}

func (p *signParts) nothingStarts() (state, detail string) {
	if p.pools == nil {
		return signUnknown, "The pools cannot be read."
	}
	waiting, running := 0, 0
	for i := range p.pools.Pools {
		waiting, running = waiting+p.pools.Pools[i].Waiting, running+p.pools.Pools[i].Running
	}
	if waiting > 0 && running == 0 {
		return signSeen, count(waiting) + " runs wait, and none has started."
	}
	return signNot, fmt.Sprintf("%s runs wait, %s run.", count(waiting), count(running))
}

// oldestAllowed is the default of the chart's alert.
const oldestAllowed = 15 * time.Minute

func (p *signParts) oldestEvent() (state, detail string) {
	if p.triggers == nil {
		return signUnknown, "The triggers cannot be read."
	}
	if n := p.triggers.Dispatchers; n != nil && *n == 0 && len(p.triggers.Triggers) > 0 {
		return signSeen, "No dispatcher delivers."
	}
	for i := range p.triggers.Triggers {
		t := &p.triggers.Triggers[i]
		if t.Numbers != nil && t.Numbers.OldestParked != nil && p.now.Sub(*t.Numbers.OldestParked) > oldestAllowed {
			return signSeen, fmt.Sprintf("An event of %s waits for %s.", word(t.Name), short(p.now.Sub(*t.Numbers.OldestParked)))
		}
	}
	return signNot, ""
}

func (p *signParts) deadLetters() (state, detail string) {
	if p.triggers == nil {
		return signUnknown, "The triggers cannot be read."
	}
	n := 0
	for i := range p.triggers.Triggers {
		if of := p.triggers.Triggers[i].DeadLetters; of != nil {
			n += *of
		}
	}
	if n > 0 {
		return signSeen, count(n) + " dead letters of triggers are open."
	}
	return signNot, ""
}

// runsFail is seen if more than half of the ended runs of the last hour have failed, as the chart's
// alert has it.
func (p *signParts) runsFail() (state, detail string) {
	if p.failed == nil || p.succeeded == nil {
		return signUnknown, "The runs cannot be read."
	}
	detail = fmt.Sprintf("Of the newest runs of the last hour, %s failed and %s succeeded.", count(*p.failed), count(*p.succeeded))
	if *p.failed > 3 && *p.failed > *p.succeeded {
		return signSeen, detail
	}
	return signNot, detail
}
