package gate

import (
	"maps"
	"slices"
	"strings"

	"tidemill.dev"
)

// worldOf is what clauses see of a version. The champion is added to it by whose
// figures count.
func worldOf(f Facts) map[string]any {
	return map[string]any{
		ofMetrics:   nest(f.Report.Metrics),
		ofConfusion: confusion(f.Report.Measured),
		ofData:      inputs(f.Origin.Inputs),
		ofRun: map[string]any{
			"attempt": float64(f.Origin.Attempt), "seconds": f.Seconds, "gpuSeconds": f.GPU, "peakMemory": float64(f.PeakMemory),
			"bytes": float64(f.Bytes), "files": float64(f.Files), "causes": float64(f.Origin.Causes),
		},
	}
}

// nest lays metrics out by their paths: by.class.f1 within class within by. One
// whose path leads through a number, or that has dots in its name, is found by
// its whole name.
func nest(metrics map[string]float64) map[string]any {
	all := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(metrics)) { // a comes before a.b
		steps := strings.Split(name, ".")
		at, free := all, true
		for _, step := range steps[:len(steps)-1] {
			if _, is := at[step]; !is {
				at[step] = map[string]any{}
			}
			if at, free = at[step].(map[string]any); !free {
				break
			}
		}
		if last := steps[len(steps)-1]; free && at[last] == nil {
			at[last] = metrics[name]
		}
		if all[name] == nil {
			all[name] = metrics[name]
		}
	}
	return all
}

// confusion lays figures out by the labels of their classes; empty without any.
func confusion(f *tidemill.Figures) map[string]any {
	if f == nil {
		return map[string]any{}
	}
	classes, matrix := map[string]any{}, map[string]any{}
	for _, c := range f.Classes {
		classes[c.Label] = map[string]any{"precision": c.Precision.Value, "recall": c.Recall.Value, "f1": c.F1,
			"support": float64(c.Support), "predicted": float64(c.Predicted)}
	}
	for _, c := range f.Cells {
		row, is := matrix[f.Classes[c.Truth].Label].(map[string]any)
		if !is {
			row = map[string]any{}
			matrix[f.Classes[c.Truth].Label] = row
		}
		row[f.Classes[c.Predicted].Label] = float64(c.Count)
	}
	return map[string]any{"examples": float64(f.Examples), "accuracy": f.Accuracy.Value, "macroF1": f.MacroF1.Value, "classes": classes, "matrix": matrix}
}

// inputs tell how much there was to learn from. Of what a URI has brought that
// is not known.
func inputs(all []tidemill.Input) map[string]any {
	data := map[string]any{}
	for _, in := range all {
		data[in.Name] = map[string]any{}
		if in.Dataset != "" {
			data[in.Name] = map[string]any{"files": float64(in.Files), "bytes": float64(in.Bytes)}
		}
	}
	return data
}

// sameData is the champion as the run has measured it; only its version if the
// run has measured none, or another.
func sameData(f Facts) map[string]any {
	champion := map[string]any{"version": float64(f.Champion)}
	if b := f.Report.Champion; b != nil && b.Version == f.Champion {
		champion[ofMetrics] = nest(b.Metrics)
		addFigures(champion, b.Measured)
		if b.Lead != nil {
			champion["lead"] = map[string]any{"value": b.Lead.Value, "low": b.Lead.Low, "high": b.Lead.High}
		}
	}
	return champion
}

// recorded is the champion as it was registered.
func recorded(f Facts) map[string]any {
	champion := map[string]any{"version": float64(f.Champion)}
	if f.Recorded != nil {
		champion[ofMetrics] = nest(f.Recorded.Metrics)
		addFigures(champion, f.Recorded.Measured)
	}
	return champion
}

func addFigures(champion map[string]any, f *tidemill.Figures) {
	if f != nil {
		champion[ofConfusion] = confusion(f)
	}
}
