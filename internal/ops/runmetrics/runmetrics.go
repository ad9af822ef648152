package runmetrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// Options configure a Census.
type Options struct {
	Broker     *broker.Broker
	Ledger     *ledger.Ledger
	InConfig   func() (recipes, pools []string) // names in the config
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Census counts runs and verdicts until it is closed.
type Census struct {
	standing *stateCollector
	judged   *prometheus.CounterVec
	facts    *follow.Follower
}

// The verdicts that are counted.
const (
	promoted = "promoted"
	refused  = "refused"
)

// Open starts to count new facts. Older facts do not count, because a counter begins at 0 with its
// process.
func Open(ctx context.Context, o Options) (*Census, error) {
	c := &Census{standing: newStanding(&o),
		judged: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_controller_versions_judged_total",
			Help: "Versions of models that were promoted or refused, anywhere; every controller counts all of them."}, []string{"recipe", "verdict"})}
	var errs []error
	for _, collector := range []prometheus.Collector{c.standing, c.judged} {
		errs = append(errs, o.Registerer.Register(collector))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of runs and models: %w", err)
	}
	var err error
	c.facts, err = follow.Open(ctx, o.Broker, follow.Options{Stream: tidemill.StreamFacts, Latest: true, Logger: o.Logger, Take: c.take})
	return c, err
}

// take counts a verdict. The first fact about a recipe, such as the request for a run, exports both
// verdicts as 0, because Prometheus sees no rise in a series that begins with another number.
func (c *Census) take(d *broker.Delivery) {
	for i := range d.Events {
		e := &d.Events[i]
		recipe, _ := e.Attribute(tidemill.AttrRecipe)
		if recipe == "" || tidemill.CheckLabel(recipe) != nil {
			continue
		}
		recipe = strings.Clone(recipe) // the delivery's memory is reused
		c.judged.WithLabelValues(recipe, promoted)
		c.judged.WithLabelValues(recipe, refused)
		if verdict := verdictOf(e); verdict != "" {
			c.judged.WithLabelValues(recipe, verdict).Inc()
		}
	}
}

// verdictOf returns the verdict in a fact about a version; "" for other facts.
func verdictOf(e *broker.Incoming) string {
	switch {
	case e.Err != nil:
		return ""
	case e.Type == tidemill.TypeModelPromoted:
		return promoted
	case e.Type == tidemill.TypeModelRefused:
		return refused
	}
	return ""
}

// Close stops counting and waits until the count has ended.
func (c *Census) Close(ctx context.Context) error { return c.facts.Close(ctx) }

// scrapeTimeout is how long a scrape waits for the ledger.
const scrapeTimeout = 5 * time.Second

// stateCollector computes the states of runs and models at each scrape.
type stateCollector struct {
	ledger                   *ledger.Ledger
	inConfig                 func() (recipes, pools []string)
	log                      *slog.Logger
	waiting, running, newest *prometheus.Desc
}

func newStanding(o *Options) *stateCollector {
	return &stateCollector{ledger: o.Ledger, inConfig: o.InConfig, log: o.Logger,
		waiting: prometheus.NewDesc("tidemill_controller_runs_waiting", "Runs that are due and have not begun, or begin again. 0 for a recipe at rest.", []string{"recipe"}, nil),
		running: prometheus.NewDesc("tidemill_controller_attempts_running", "Attempts that run, or are about to. 0 for a pool at rest.", []string{"pool"}, nil),
		newest: prometheus.NewDesc("tidemill_controller_newest_champion_timestamp_seconds",
			"When the run began that made the newest champion of a recipe.", []string{"recipe"}, nil)}
}

// Describe implements prometheus.Collector.
func (s *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.waiting, s.running, s.newest} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It leaves out a number that cannot be read, because an
// old number would hide an alert.
func (s *stateCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label)
	}
	running, due, err := s.ledger.Used(ctx)
	recipes, pools := s.inConfig()
	if err == nil { // a recipe or a pool at rest has a number, too
		for _, name := range recipes {
			due[name] += 0
		}
		for _, name := range pools {
			running[name] += 0
		}
	}
	for pool, n := range running {
		gauge(s.running, float64(n), pool)
	}
	for recipe, n := range due {
		gauge(s.waiting, float64(n), recipe)
	}
	newest, alsoErr := s.ledger.NewestChampions(ctx)
	for recipe, at := range newest {
		if !slices.Contains(recipes, recipe) { // its models stay, and no run makes newer ones
			continue
		}
		gauge(s.newest, float64(at.UnixMilli())/1000, recipe)
	}
	if err := errors.Join(err, alsoErr); err != nil {
		s.log.Debug("metrics: counting runs and models failed; their metrics are missing", "reason", err)
	}
}

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
