package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/runs/curves"
)

const (
	curvesFile = "metrics.jsonl"
	// mostParsed is how much of a metrics.jsonl is parsed for one request. That takes half a second of one
	// core. Of a larger file, some lines are chosen. mostRead is how much is searched for them.
	mostParsed, mostRead = 8 << 20, 256 << 20
	curvesMemory         = 2 << 20 // memory of one request: a line, and twenty curves of a thousand points

	usualPoints, leastPoints, mostPoints = 200, 10, 1000
)

// showCurves answers with the learning curves of a run: of its metrics.jsonl if it has stored one, or
// else of the progress that was reported.
func (g *Gateway) showCurves(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"points"})
	if p != nil {
		return p
	}
	points, err := strconv.Atoi(orElse(values.Get("points"), strconv.Itoa(usualPoints)))
	if err != nil || points < leastPoints || points > mostPoints {
		return badParameter("points", fmt.Sprintf("%q is not valid; give %d to %d", clipText(values.Get("points")), leastPoints, mostPoints))
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	run, p := g.findRun(ctx, r, access.Read, r.value)
	if p != nil {
		return p
	}
	if p := g.chargeMemory(r, curvesMemory); p != nil {
		return p
	}
	recipe, _ := g.opt.Config().Recipe(run.Recipe) // a recipe that is no longer in the config has no gate
	set := curves.New(points, gate.Metrics(recipe.Gate))
	shown := api.RunCurves{Run: run.ID, Source: curvesFile}
	found, p := g.readCurvesFile(r.Context(), run, set, &shown)
	if p == nil && !found {
		shown.Source = "progress"
		p = g.readPoints(ctx, run, set)
	}
	if p != nil {
		return p
	}
	if set.LeftOut() {
		shown.Note = strings.TrimSpace(fmt.Sprintf("at most %d metrics have a curve, with names of at most %d bytes. %s", curves.MaxCurves, curves.MaxName, shown.Note))
	}
	shown.Steps, shown.Curves = set.Steps(), set.Curves()
	writeJSON(w, http.StatusOK, shown)
	return nil
}

// readCurvesFile reads the metrics.jsonl of a run, and reports whether it has one.
func (g *Gateway) readCurvesFile(ctx context.Context, run *tidemill.Run, set *curves.Set, shown *api.RunCurves) (found bool, p *api.Problem) {
	if run.Result == nil || run.Result.Artifact == "" || g.opt.Store == nil {
		return false, nil
	}
	file, err := g.opt.Store.File(ctx, run.Result.Artifact, curvesFile)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrMissing) {
		return false, nil // it wrote none, or a garbage collection has removed it
	}
	if err != nil {
		return false, g.storeFault("look for the metrics.jsonl of run "+run.ID, err)
	}
	from, err := g.opt.Store.OpenFile(ctx, file)
	if err != nil {
		return false, g.storeFault("open the metrics.jsonl of run "+run.ID, err)
	}
	defer from.Close()
	every := 1 + int(max(0, min(file.Size, mostRead)-1)/mostParsed)
	more, err := set.Read(from, every, mostRead)
	if err != nil {
		return false, g.storeFault("read the metrics.jsonl of run "+run.ID, err)
	}
	if every > 1 {
		shown.Note = fmt.Sprintf("metrics.jsonl has %d MiB, so only about one line in %d is shown", file.Size>>20, every)
	}
	if more {
		shown.Note += fmt.Sprintf(", and nothing after the first %d MiB", mostRead>>20)
	}
	return true, nil
}

// readPoints reads the progress of a run that Redis has.
func (g *Gateway) readPoints(ctx context.Context, run *tidemill.Run, set *curves.Set) *api.Problem {
	points, err := g.opt.Ledger.Points(ctx, run.ID)
	if err != nil {
		return g.ledgerProblem(ctx, err)
	}
	newest, err := g.opt.Ledger.Told(ctx, []string{run.ID})
	if err != nil {
		return g.ledgerProblem(ctx, err)
	}
	points = append(points, newest[run.ID]) // the newest step may be too near to the last point
	last := math.NaN()
	for _, text := range points {
		var step api.Progress
		if json.Unmarshal(text, &step) == nil && step.Step != last { // none after the end of the run
			set.Add(step.Step, step.Metrics, nil)
			last = step.Step
		}
	}
	return nil
}

// mostPoint bounds a point of a curve in Redis. A run has at most 2,000 of them.
const mostPoint = 2 << 10

// addToCurves adds a step to the curves of a run. A metric of the gate has precedence if there are too
// many.
func (g *Gateway) addToCurves(ctx context.Context, run *tidemill.Run, step *api.Progress) error {
	if len(step.Metrics) == 0 {
		return nil
	}
	var first []string
	if len(step.Metrics) > curves.MaxCurves { // to parse the gate takes too long for every step
		recipe, _ := g.opt.Config().Recipe(run.Recipe)
		first = gate.Metrics(recipe.Gate)
	}
	point, err := json.Marshal(pointOf(step, first))
	if err != nil {
		return err
	}
	return g.opt.Ledger.AddPoint(ctx, run.ID, step.Time, point)
}

// curvePoint is a step as the curves in Redis have it.
type curvePoint struct {
	Step    float64            `json:"step"`
	Metrics map[string]float64 `json:"metrics"`
}

// pointOf returns a step with the first metrics of the gate, and then by name, that fit into a point.
func pointOf(step *api.Progress, first []string) curvePoint {
	p, left := curvePoint{step.Step, map[string]float64{}}, mostPoint
	add := func(name string) {
		const number = 24 // letters of the longest number, and of its punctuation
		value, has := step.Metrics[name]
		if size := len(name) + number; has && size <= left && len(p.Metrics) < curves.MaxCurves {
			p.Metrics[name] = value
			left -= size
		}
	}
	for _, name := range first {
		add(name)
	}
	for _, name := range slices.Sorted(maps.Keys(step.Metrics)) {
		if !slices.Contains(first, name) {
			add(name)
		}
	}
	return p
}

// forgetPoints removes the points of a run whose metrics.jsonl has all of them.
func (g *Gateway) forgetPoints(ctx context.Context, run *tidemill.Run, files []api.File) {
	if run.State != tidemill.RunSucceeded || !slices.ContainsFunc(files, func(f api.File) bool { return f.Path == curvesFile }) {
		return
	}
	if err := g.opt.Ledger.ForgetPoints(ctx, run.ID); err != nil {
		g.log.Debug("gateway: removing the points of a run failed; they expire in a day", "run", run.ID, "reason", err)
	}
}
