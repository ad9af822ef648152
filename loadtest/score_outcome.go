package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"tidemill.dev/loadtest/internal/scenario"
	"tidemill.dev/loadtest/internal/task"
)

// scoreReport is the JSON report of a run.
type scoreReport struct {
	At        time.Time      `json:"at"`
	Machine   machine        `json:"machine"`
	Smoke     bool           `json:"smoke,omitempty"`
	Rounds    int            `json:"rounds"`
	Scenarios []scoreOutcome `json:"scenarios"`
}

// scoreOutcome is the result of a scenario.
type scoreOutcome struct {
	Name    string             `json:"name"`
	About   string             `json:"about"`
	Rows    []scoreRow         `json:"rows,omitempty"`
	Figures map[string]float64 `json:"figures"`
	Budgets []verdict          `json:"budgets"`
	Quotes  []scenario.Quote   `json:"quotes,omitempty"`
	Notes   []string           `json:"notes,omitempty"`
}

// scoreRow is one compared program. Figures are medians of the rounds.
type scoreRow struct {
	Name      string  `json:"name"`
	PerSecond float64 `json:"perSecond"`
	Least     float64 `json:"least"`
	Most      float64 `json:"most"`
	CPU       float64 `json:"cpuMicros"`           // CPU time of the client's process per event
	Broker    float64 `json:"brokerMicros"`        // CPU time of the broker per event
	Mallocs   float64 `json:"allocations"`         // allocations per event
	Memory    float64 `json:"mebibytes,omitempty"` // most resident memory of the client's process
	P50       float64 `json:"p50Milliseconds,omitempty"`
	P99       float64 `json:"p99Milliseconds,omitempty"`
	Ours      bool    `json:"ours,omitempty"`
	Part      bool    `json:"part,omitempty"` // a part of the ceiling, which is too large for the chart
}

// verdict is a budget and whether it was met.
type verdict struct {
	Figure string  `json:"figure"`
	Bar    string  `json:"bar"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Met    bool    `json:"met"`
	Absent string  `json:"absent,omitempty"` // reason why it was not measured
}

// measuredTurn is one contender's turn.
type measuredTurn struct {
	task.Result
	broker time.Duration // CPU time of the broker
	whole  int           // number of events to which the broker's CPU time belongs
}

func (m measuredTurn) rate() float64 { return perSecond(m.Result) }

// turns are the turns of one contender, round by round.
type turns []measuredTurn

func (t turns) figures(of func(measuredTurn) float64) []float64 {
	all := make([]float64, len(t))
	for i, m := range t {
		all[i] = of(m)
	}
	return all
}

func (t turns) row(name string, ours bool) scoreRow {
	rate := spreadOf(t.figures(measuredTurn.rate))
	return scoreRow{Name: name, Ours: ours, PerSecond: rate.median, Least: rate.min, Most: rate.max,
		CPU:     spreadOf(t.figures(func(m measuredTurn) float64 { return cpuMicros(m.Result) })).median,
		Broker:  spreadOf(t.figures(func(m measuredTurn) float64 { return float64(m.broker) / 1e3 / float64(max(1, m.whole)) })).median,
		Mallocs: spreadOf(t.figures(func(m measuredTurn) float64 { return mallocs(m.Result) })).median,
		Memory:  spreadOf(t.figures(func(m measuredTurn) float64 { return float64(m.Resident) / (1 << 20) })).median}
}

// checkBudgets compares the figures with the budgets. A missing figure without a reason is a
// mistake in the scenario.
func (o *scoreOutcome) checkBudgets(budgets []scenario.Budget, absent map[string]string) error {
	for _, b := range budgets {
		v, ok := o.Figures[b.Figure]
		why := absent[b.Figure]
		if !ok && why == "" {
			return fmt.Errorf("scenario %s has a budget of %q, which is not measured there", o.Name, b.Figure)
		}
		o.Budgets = append(o.Budgets, verdict{Figure: b.Figure, Bar: b.String(), Value: v, Unit: b.Unit, Met: ok && b.Met(v), Absent: why})
	}
	return nil
}

// budgetMissed reports whether a measured budget was missed.
func (o *scoreOutcome) budgetMissed() bool {
	return slices.ContainsFunc(o.Budgets, func(v verdict) bool { return !v.Met && v.Absent == "" })
}

// auditFailed reports whether events were lost, or scored twice or wrongly. A short run also fails
// in that case.
func (o *scoreOutcome) auditFailed() bool {
	return slices.ContainsFunc(o.Budgets, func(v verdict) bool { return v.Value != 0 && slices.Contains(mustBeNone, v.Figure) })
}

// The figures that must be zero.
const (
	figureLost       = "lost"
	figureTwice      = "twice"
	figureWrong      = "wrong"
	figureNoChampion = "by no champion"
)

var mustBeNone = []string{figureLost, figureTwice, figureWrong, figureNoChampion}

// machine describes the machine on which the figures were measured.
type machine struct {
	System    string `json:"system"`
	Processor string `json:"processor,omitempty"`
	Cores     int    `json:"cores"`
	Go        string `json:"go"`
}

func thisMachine() machine {
	return machine{System: runtime.GOOS + "/" + runtime.GOARCH, Processor: processor(), Cores: runtime.NumCPU(), Go: runtime.Version()}
}

// processor returns the processor's name from /proc/cpuinfo, or an empty string.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
