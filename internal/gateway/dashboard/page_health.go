package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"tidemill.dev/api"
)

func healthPages() []*page {
	return []*page{
		{path: "/ui/health", file: "health", nav: "/ui/health", title: named("Health"), regions: []region{
			{"checks", "health", loadChecks},
			{"signs", "health triggers scorers runs pools dead-letters", loadSigns},
			{"processes", "health scorers triggers pools", loadProcesses},
			{"storage", "health streams", loadStorage},
		}},
		{path: "/ui/health/runbooks/{name}", file: "runbook", nav: "/ui/health", title: named("Runbook"), load: loadRunbook},
	}
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

func loadChecks(v *visit) (any, error) { return askReadiness(v) }

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

func loadProcesses(v *visit) (any, error) {
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
	return p, nil
}

// storage is what Kafka and the store hold.
type storage struct {
	Streams, Events int64
	Bytes           *int64 // nil if Kafka does not report it
	Store           *api.Problem
	NoStore         bool
}

func loadStorage(v *visit) (any, error) {
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
	return s, nil
}
