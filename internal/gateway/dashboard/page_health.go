package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

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
