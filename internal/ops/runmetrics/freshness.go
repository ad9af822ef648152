package runmetrics

import (
	"math"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

// StagesOf returns the seconds of each stage from an event to the first score of a version. The time asked is that of
// the newest request of the run, and swapped that of the first score; a zero time is not known. Earlier attempts of the
// run count as waiting. The upload of the output counts as judging.
func StagesOf(run *tidemill.Run, asked time.Time, m *fold.Model, version int, swapped time.Time) (s api.FreshStages) {
	promoted := promotedAt(m, version)
	s.Swapping = between(promoted, swapped)
	s.Total = between(asked, swapped)
	if run == nil || len(run.Attempts) == 0 {
		return s
	}
	last := &run.Attempts[len(run.Attempts)-1]
	s.Waiting = between(asked, last.Started)
	if last.Outcome != tidemill.OutcomeSucceeded || run.Result == nil {
		return s
	}
	s.Fetching, s.Training = stageOf(run.Result, "fetch"), stageOf(run.Result, "run")
	upload := stageOf(run.Result, "upload")
	if s.Fetching == nil || s.Training == nil || upload == nil {
		return s
	}
	rest := last.Ended.Sub(last.Started).Seconds() - *s.Fetching - *s.Training - *upload
	s.Starting = seconds(rest)
	if after := between(last.Ended, promoted); after != nil {
		s.Judging = seconds(*after + *upload)
	}
	return s
}

// promotedAt returns when a version became the champion for the first time; zero if it is not known.
func promotedAt(m *fold.Model, version int) time.Time {
	if m == nil {
		return time.Time{}
	}
	i := slices.IndexFunc(m.Changes, func(c fold.Change) bool { return c.Version == version })
	if i < 0 {
		return time.Time{}
	}
	return m.Changes[i].At
}

// between returns nil if one of the times is not known. The clocks of two processes differ a little, so no time is
// negative.
func between(from, to time.Time) *float64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	return seconds(to.Sub(from).Seconds())
}

// seconds rounds to milliseconds, because no clock of another process is more exact.
func seconds(s float64) *float64 { return new(math.Round(max(0, s)*1000) / 1000) }

// stageOf returns the seconds of a stage of an attempt; nil if the attempt did not report it.
func stageOf(r *tidemill.Result, name string) *float64 {
	for _, s := range r.Stages {
		if s.Name == name {
			return seconds(s.Seconds)
		}
	}
	return nil
}

// Summarize returns the percentiles of each stage, without the versions that do not have it.
func Summarize(all []api.FreshStages) map[string]*api.Percentiles {
	values := map[string][]float64{}
	(&api.FreshStages{}).Each(func(stage string, _ *float64) { values[stage] = nil })
	for i := range all {
		all[i].Each(func(stage string, s *float64) {
			if s != nil {
				values[stage] = append(values[stage], *s)
			}
		})
	}
	stages := map[string]*api.Percentiles{}
	for stage, of := range values {
		stages[stage] = nil
		if len(of) > 0 {
			slices.Sort(of)
			stages[stage] = &api.Percentiles{P50: percentile(of, .5), P99: percentile(of, .99)}
		}
	}
	return stages
}

// percentile returns the least value that a share of the sorted values does not exceed.
func percentile(sorted []float64, share float64) float64 {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
