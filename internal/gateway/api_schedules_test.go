package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/schedule"
)

const scheduleConfig = testConfig + `schedules:
  nightly: {cron: "0 3 * * *", timeZone: Europe/Berlin, missed: last, keys: [a, b], spread: 2h}
  often: {cron: "* * * * * *"}
`

func (w *world) schedules(path string, headers ...string) []api.Schedule {
	w.Helper()
	return sendDecoded[api.Schedules](w, http.MethodGet, path, "", headers...).Schedules
}

func TestSchedulesAreListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if all := w.schedules("/api/v1/schedules"); all == nil || len(all) != 0 {
		t.Errorf("without any: %v", all)
	}
	conf := must1(config.Parse("test.yaml", []byte(scheduleConfig)))(t)
	w.applyConfig(conf)
	before := time.Now()
	all := w.schedules("/api/v1/schedules")
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	s := all[0]
	if s.Name != "nightly" || s.Cron != "0 3 * * *" || s.TimeZone != "Europe/Berlin" || s.Missed != "last" || s.Keys != 2 || s.SpreadSeconds != 7200 ||
		s.State != api.ScheduleActive || s.Last != nil || s.Next == nil || s.Next.Hour() != 3 || !s.Next.After(before) {
		t.Errorf("%+v", s)
	}
	k := must1(schedule.Open(schedule.Options{Broker: w.broker, Names: must1(conf.Names())(t), Config: conf}))(t)
	w.waitUntil("the schedule has ticked", func() bool { return w.schedules("/api/v1/schedules")[1].Last != nil })
	w.must(k.Close(context.WithoutCancel(t.Context())))
	if s := w.schedules("/api/v1/schedules")[1]; s.Next.Sub(*s.Last) < time.Second || s.Keys != 0 {
		t.Errorf("%+v", s)
	}
}

func TestASchedulePauses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: operate")+callerLine("bob", "role: read")+callerLine("eve", "role: operate, keys: [a]"))
	})
	w.applyConfig(must1(config.Parse("test.yaml", []byte(scheduleConfig)))(t))
	ask := func(path, name string) (done api.ScheduleDone) {
		t.Helper()
		r := w.post(path, "", tokenHeader(name)...)
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s", path, r.Status, r.body)
		}
		w.must(json.Unmarshal([]byte(r.body), &done))
		return done
	}
	pause, resume := "/api/v1/schedules/nightly/pause", "/api/v1/schedules/nightly/resume"
	done := ask(pause, "ana")
	if s := done.Schedule; !done.Changed || done.Position.Stream != tidemill.StreamCommands || s.State != api.SchedulePaused || s.PausedBy != "ana" || s.PausedSince == nil || s.Next != nil {
		t.Errorf("%+v", done)
	}
	if done := ask(pause, "ana"); done.Changed || done.Position != nil || done.Schedule.State != api.SchedulePaused {
		t.Errorf("again: %+v", done)
	}
	if s := w.schedules("/api/v1/schedules", tokenHeader("bob")...)[0]; s.State != api.SchedulePaused || s.PausedBy != "ana" {
		t.Errorf("as it is listed: %+v", s)
	}
	if done := ask(resume, "ana"); !done.Changed || done.Schedule.State != api.ScheduleActive || done.Schedule.Next == nil {
		t.Errorf("resumed: %+v", done)
	}
	var acts []broker.View
	must1(w.broker.ReadBack(t.Context(), []broker.Position{{Stream: tidemill.StreamCommands}}, func(e *broker.Incoming) { acts = append(acts, e.View.Clone()) }))(t)
	if len(acts) != 2 || acts[0].Type != tidemill.TypeSchedulePaused || acts[0].Subject != "nightly" {
		t.Errorf("%+v", acts)
	}
	if by, _ := acts[0].Attribute(tidemill.AttrAuthID); by != "ana" {
		t.Errorf("signed by %q", by)
	}
	wantProblem(t, w.post(pause, "", tokenHeader("bob")...), http.StatusForbidden, api.Forbidden, "operate")
	wantProblem(t, w.post(pause, "", tokenHeader("eve")...), http.StatusForbidden, api.Forbidden, "a schedule is for all keys")
	wantProblem(t, w.post("/api/v1/schedules/no/pause", "", tokenHeader("ana")...), http.StatusNotFound, api.UnknownSchedule, `"no"`)
}

// scheduleAsks get every documented answer about schedules.
func (d *testGateways) scheduleAsks(long, stranger []string) (all []gatewayRequest) {
	for path, role := range map[string][]string{"GET /api/v1/schedules": d.reader, "POST /api/v1/schedules/nightly/pause": d.operator, "POST /api/v1/schedules/nightly/resume": d.operator} {
		method, path, _ := strings.Cut(path, " ")
		all = append(all, gatewayRequest{d.open, method, path, "", nil, 200}, gatewayRequest{d.guarded, method, path, "", role, 200}, gatewayRequest{d.open, method, path, "", stranger, 403},
			gatewayRequest{d.guarded, method, path, "", d.publisher, 403}, gatewayRequest{d.guarded, method, path, "", nil, 401},
			gatewayRequest{d.narrow, method, path, "", append(long, role...), 431}, gatewayRequest{d.down, method, path, "", nil, 503})
	}
	return append(all, gatewayRequest{d.open, "POST", "/api/v1/schedules/no/pause", "", nil, 404}, gatewayRequest{d.open, "POST", "/api/v1/schedules/no/resume", "", nil, 404})
}
