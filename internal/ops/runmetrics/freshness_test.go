package runmetrics

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

var began = time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time {
	return began.Add(time.Duration(seconds * float64(time.Second)))
}

// textOf writes the stages; a dash is an unknown one.
func textOf(s api.FreshStages) (text string) {
	s.Each(func(stage string, seconds *float64) {
		if seconds == nil {
			text += stage + " - "
			return
		}
		text += fmt.Sprint(stage, " ", *seconds, " ")
	})
	return text
}

func madeRun(attempts ...tidemill.Attempt) *tidemill.Run {
	return &tidemill.Run{Attempts: attempts, Result: &tidemill.Result{Stages: []tidemill.Stage{{Name: "fetch", Seconds: 2}, {Name: "run", Seconds: 30}, {Name: "upload", Seconds: 1}}}}
}

func TestStages(t *testing.T) {
	success := tidemill.Attempt{Started: after(10), Ended: after(50), Outcome: tidemill.OutcomeSucceeded}
	second := tidemill.Attempt{Started: after(100), Ended: after(140), Outcome: tidemill.OutcomeSucceeded}
	model := func(at float64) *fold.Model {
		return &fold.Model{Changes: []fold.Change{{Version: 1, At: after(-5)}, {Version: 2, At: after(at)}, {Version: 2, At: after(9999)}}}
	}
	noUpload := madeRun(success)
	noUpload.Result.Stages = noUpload.Result.Stages[:2]
	for name, c := range map[string]struct {
		run     *tidemill.Run
		asked   time.Time
		m       *fold.Model
		swapped time.Time
		want    string
	}{
		"whole":                 {madeRun(success), began, model(55), after(60.5), "waiting 10 starting 7 fetching 2 training 30 judging 6 swapping 5.5 total 60.5 "},
		"the second attempt":    {madeRun(tidemill.Attempt{Started: after(10), Ended: after(20), Outcome: tidemill.OutcomeLost}, second), began, model(145), after(150), "waiting 100 starting 7 fetching 2 training 30 judging 6 swapping 5 total 150 "},
		"a forgotten run":       {nil, time.Time{}, model(55), after(60), "waiting - starting - fetching - training - judging - swapping 5 total - "},
		"not promoted":          {madeRun(success), began, &fold.Model{}, time.Time{}, "waiting 10 starting 7 fetching 2 training 30 judging - swapping - total - "},
		"no model":              {madeRun(success), began, nil, time.Time{}, "waiting 10 starting 7 fetching 2 training 30 judging - swapping - total - "},
		"under way":             {&tidemill.Run{Attempts: []tidemill.Attempt{{Started: after(10)}}}, began, nil, time.Time{}, "waiting 10 starting - fetching - training - judging - swapping - total - "},
		"waits":                 {&tidemill.Run{}, began, nil, time.Time{}, "waiting - starting - fetching - training - judging - swapping - total - "},
		"an agent says less":    {noUpload, began, model(55), after(60), "waiting 10 starting - fetching 2 training 30 judging - swapping 5 total 60 "},
		"clocks differ":         {madeRun(success), after(11), model(55), after(54), "waiting 0 starting 7 fetching 2 training 30 judging 6 swapping 0 total 43 "},
		"the request is unread": {madeRun(success), time.Time{}, model(55), after(60), "waiting - starting 7 fetching 2 training 30 judging 6 swapping 5 total - "},
	} {
		if got := textOf(StagesOf(c.run, c.asked, c.m, 2, c.swapped)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// An unknown stage does not count as zero.
func TestPercentilesOfStages(t *testing.T) {
	var all []api.FreshStages
	for i := range 100 {
		one := api.FreshStages{Waiting: new(float64(100 - i))}
		if i < 3 {
			one.Training = new(float64(7 + i))
		}
		all = append(all, one)
	}
	got := Summarize(all)
	if *got["waiting"] != (api.Percentiles{P50: 50, P99: 99}) || *got["training"] != (api.Percentiles{P50: 8, P99: 9}) || got["total"] != nil || len(got) != 7 {
		t.Errorf("%+v", got)
	}
	if none := Summarize(nil); len(none) != 7 || none["total"] != nil {
		t.Errorf("of none: %v", none)
	}
	if p := percentile(slices.Repeat([]float64{4}, 1), .99); p != 4 {
		t.Errorf("of one: %v", p)
	}
}
