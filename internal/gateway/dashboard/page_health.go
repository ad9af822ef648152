package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func healthPages() []*page {
	return []*page{
		{path: "/ui/health", nav: "/ui/health", title: named("Health"), main: still(showHealthPage), regions: []region{
			part("checks", "health", askReadiness, showChecks),
			part("signs", "health triggers scorers runs pools dead-letters", loadSigns, showSigns),
			part("processes", "health scorers triggers pools", loadProcesses, showProcesses),
			part("storage", "health streams", loadStorage, showStorage),
		}},
		{path: "/ui/health/runbooks/{name}", nav: "/ui/health", title: named("Runbook"), main: loaded(loadRunbook, showRunbook)},
	}
}

func showHealthPage(v *view) Node {
	return list(h.H1(say(v.Title)), v.Region("checks"), h.Div(h.Class("side"), h.Div(v.Region("signs")),
		h.Aside(h.Aria("label", "Processes and storage"), v.Region("processes"), v.Region("storage"))))
}

// readiness is the state of the gateway's dependencies. Config is the check of the config.
type readiness struct {
	api.Readiness
	Config *api.Check
}

// askReadiness reads the checks. A process that is not ready answers with an error status, but with
// the same body.
func askReadiness(v *visit) (r readiness, err error) {
	status, body, err := v.ask(http.MethodGet, "/readyz", nil, nil)
	if err != nil {
		return r, err
	}
	if json.Unmarshal(body, &r.Readiness) != nil || r.Status == "" {
		return r, errors.Join(problemOf(status, body), err)
	}
	for i := range r.Checks {
		if r.Checks[i].Name == "config" {
			r.Config = &r.Checks[i]
		}
	}
	return r, nil
}

func showChecks(_ *visit, r readiness) Node {
	sentence := "This process works, but a part needs attention."
	switch r.Status {
	case api.OK:
		sentence = "All parts of this process are well."
	case api.Failed:
		sentence = "This process cannot do its work. A part has failed."
	}
	var refused Node
	if r.Config != nil && r.Config.Status != api.OK {
		refused = h.Div(h.Class("problem"), h.Role("alert"), h.P(h.Strong(say("The new config is refused"))), h.P(say(titled(r.Config.Detail))))
	}
	return list(lead(badge(r.Status), say(" "+sentence)), refused, scroll("rows", heads("Part", "State", "Detail", "Meaning"), rows(each(r.Checks, func(c *api.Check) Node {
		return row(titled(c.Name), rowName(text(c.Name)), cell(badge(c.Status)), cell(say(titled(c.Detail))), h.Td(h.Class("none"), say(meaningOf(c.Name))))
	}))))
}

func showSigns(_ *visit, all []sign) Node {
	return list(h.H2(say("Alerts and runbooks")), note(say("What this gateway sees at this moment. The alerts of the chart look at a longer time in Prometheus.")),
		scroll("rows", heads("Runbook", "Now", "Detail", "Alert"), rows(each(all, func(s *sign) Node {
			return row(s.Alert, rowName(anchor("/ui/health/runbooks/"+s.Runbook, say(s.Title))), cell(badge(s.State)), cell(say(titled(s.Detail))), h.Td(h.Class("none"), say(s.Alert)))
		}))))
}

// meaningOf says what a check looks at.
func meaningOf(check string) string {
	switch check {
	case "kafka":
		return "Kafka's brokers answer"
	case "redis":
		return "Redis answers; it has the state of runs and the memory of repeats"
	case "streams":
		return "the streams of the config exist"
	case "config":
		return "the config in force, by its hash"
	case "disk":
		return "room on the disk of the data folder"
	case "runs":
		return "runs are recorded and started"
	case "triggers":
		return "events are delivered"
	case "clock":
		return "a controller sends the ticks of schedules"
	case "scorers":
		return "this process scores"
	case "services":
		return "Knative Services are found"
	case "access":
		return "tokens are checked"
	case "gateway":
		return "the gateway takes requests"
	}
	return ""
}

// processes are the processes that this page can see.
type processes struct {
	Dispatchers, Scorers *int
	Running              []scorerProcess
	Pools                []api.Pool
	Lingering            int
	Version              string
}

type scorerProcess struct {
	api.ScorerProcess
	Scorer string
}

func loadProcesses(v *visit) (*processes, error) {
	p := processes{Version: v.d.opt.Version}
	triggers, err := get[api.Triggers](v, "/api/v1/triggers", nil)
	if err != nil {
		return nil, err
	}
	scorers, err := get[api.Scorers](v, "/api/v1/scorers", nil)
	if err != nil {
		return nil, err
	}
	p.Dispatchers, p.Scorers = triggers.Dispatchers, scorers.Processes
	for _, s := range scorers.Scorers {
		shown, err := get[api.ScorerShown](v, "/api/v1/scorers/"+s.Name, nil)
		if err != nil {
			continue // removed from the config since the list
		}
		for _, running := range shown.Running {
			p.Running = append(p.Running, scorerProcess{running, s.Name})
		}
	}
	pools, err := get[api.Pools](v, "/api/v1/pools", nil)
	if err != nil && !isNotImplemented(err) && !isNotFound(err) {
		return nil, err
	}
	p.Pools = pools.Pools
	for i := range pools.Pools {
		p.Lingering += pools.Pools[i].Lingering
	}
	return &p, nil
}

func showProcesses(v *visit, p *processes) Node {
	return list(h.H2(say("Processes")), facts(
		fact("Version of this gateway", text(p.Version)),
		fact("Dispatchers", say(count(p.Dispatchers))),
		fact("Processes that score", say(count(p.Scorers))),
		fact("Pods that wait for a run", say(count(p.Lingering)))),
		when(len(p.Running) > 0, h.Table(h.Class("rows"), heads("Scorer", "Process", "Began", "Memory of models"), rows(each(p.Running, func(s *scorerProcess) Node {
			return row(titled(s.ID)+" "+titled(s.Scorer), rowName(scorerLink(s.Scorer)), cell(text(s.ID), say(" "), quiet(say(word(s.Host)))), cell(v.ago(s.Began)), cell(say(size(s.Bytes))))
		})))))
}

// storage is what Kafka and the store hold.
type storage struct {
	Streams, Events int64
	Bytes           *int64 // nil if Kafka does not report it
	Store           *api.Problem
	NoStore         bool
}

func loadStorage(v *visit) (*storage, error) {
	streams, err := get[api.Streams](v, "/api/v1/streams", nil)
	if err != nil {
		return nil, err
	}
	s := storage{Streams: int64(len(streams.Streams)), Bytes: new(int64)}
	for i := range streams.Streams {
		s.Events += streams.Streams[i].Records
		if n := streams.Streams[i].Bytes; n == nil {
			s.Bytes = nil
		} else if s.Bytes != nil {
			*s.Bytes += *n
		}
	}
	_, err = get[api.Datasets](v, "/api/v1/data/datasets", url.Values{"limit": {"1"}, "prefix": {"~"}})
	switch {
	case isNotFound(err):
		s.NoStore = true
	case err != nil && !errors.As(err, &s.Store):
		return nil, err
	}
	return &s, nil
}

func showStorage(_ *visit, s *storage) Node {
	kafka := count(s.Streams) + " streams, " + count(s.Events) + " events"
	if s.Bytes != nil {
		kafka += ", " + size(s.Bytes)
	}
	store := list(badge("ok"), say(" it answers"))
	switch {
	case s.NoStore:
		store = say("none is configured")
	case s.Store != nil:
		store = list(badge("failed"), say(" "+titled(s.Store.Detail)))
	}
	return list(h.H2(say("Storage")), facts(fact("Kafka", say(kafka)), fact("Store", store)))
}

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
