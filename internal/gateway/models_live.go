package gateway

import (
	"context"
	"slices"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/models/evaluate"
)

// liveFigures returns the live figures of a model, the newest version first.
func (g *Gateway) liveFigures(ctx context.Context, m *fold.Model) ([]api.LiveFigures, *api.Problem) {
	if len(m.Live) == 0 {
		return nil, nil
	}
	var numbers []int
	for _, d := range m.Live {
		numbers = append(numbers, d.Version)
	}
	versions, err := g.opt.Ledger.Versions(ctx, m.Name, numbers...)
	if err != nil {
		return nil, g.ledgerProblem(ctx, err)
	}
	gates := map[int]*float64{}
	for i := range versions {
		if accuracy, has := versions[i].Metrics["accuracy"]; has {
			gates[versions[i].Number] = &accuracy
		}
	}
	var all []api.LiveFigures
	for _, d := range slices.Backward(m.Live) {
		all = append(all, liveOf(&d, gates[d.Version]))
	}
	return all, nil
}

// liveOf returns the figures of one version in a scorer. The gate judged an accuracy of its own, unless it is nil.
func liveOf(d *tidemill.Measured, gate *float64) api.LiveFigures {
	f := evaluate.LiveFigures(d)
	l := api.LiveFigures{Scorer: d.Scorer, Version: d.Version, Sentence: evaluate.CompareLive(f.Accuracy, d.Answers, gate), Answers: d.Answers, Right: d.Right, Assumed: d.Assumed,
		Corrected: d.Corrected, Accuracy: f.Accuracy, Gate: gate, First: d.First, Last: d.Last, Classes: append([]tidemill.Class{}, f.Classes...), Cells: append([]tidemill.Cell{}, f.Cells...),
		Days: append([]tidemill.Day{}, d.Days...)}
	if e, ok := evaluate.CalibrationError(d); ok {
		l.CalibrationError = &e
	}
	for i, b := range d.Bins {
		of := api.LiveBin{From: float64(i) / 10, To: float64(i+1) / 10, Answers: b.Answers, Right: b.Right}
		if b.Answers > 0 {
			of.Score = float64(b.Score) / 1e6 / float64(b.Answers)
		}
		l.Bins = append(l.Bins, of)
	}
	return l
}
