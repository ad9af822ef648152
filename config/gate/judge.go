package gate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"tidemill.dev"
)

// maxValues bounds how many figures a judged clause reports.
const maxValues = 32

// evaluation holds the state of one judgement.
type evaluation struct {
	Facts
	same, recorded map[string]any // values for clauses, with the champion's figures on the same data or as recorded
}

// Judge decides, and explains the decision in one sentence. It depends only on its arguments,
// so a repeated judgement gives the same result.
func (g *Gate) Judge(model string, version int, f Facts) tidemill.Judgement {
	c := newEvaluation(f)
	j := tidemill.Judgement{Passed: true, Against: f.Champion, Beside: f.Given}
	if b := f.Report.Champion; b != nil {
		j.Beside = b.Version
		if b.Lead != nil && b.Version == f.Champion {
			j.Lead = &b.Lead.Value
		}
	}
	for _, clause := range g.clauses {
		result, on := c.evaluate(clause)
		j.Clauses = append(j.Clauses, result)
		j.Passed = j.Passed && result.Passed
		if on == tidemill.GateOnRecorded || j.On == "" {
			j.On = on
		}
	}
	t := f.Report.Trial
	if t != nil && t.Error != "" {
		j.Passed = false
		j.Clauses = append([]tidemill.Clause{{Text: servedClause, Note: t.Error}}, j.Clauses...)
		j.Sentence = refusal(model, version) + ServedBy(t) + " cannot serve it: " + brief(t.Error)
		return j
	}
	j.Sentence = g.sentence(model, version, f, j)
	if t != nil {
		j.Lacks = t.Missing != ""
	}
	if t != nil && t.Warning != "" {
		j.Clauses = append([]tidemill.Clause{{Text: servedClause, Passed: true, Note: "warning: " + t.Warning}}, j.Clauses...)
	}
	return j
}

// servedClause is the text of the clause that every gate has.
const servedClause = "the model can be served"

// ServedBy names what was to serve a model.
func ServedBy(t *tidemill.ServingCheck) string {
	if t.Scorer == "" {
		return "Tidemill"
	}
	return "scorer " + t.Scorer
}

func newEvaluation(f Facts) *evaluation {
	c := &evaluation{Facts: f, same: worldOf(f)}
	c.recorded = maps.Clone(c.same)
	c.same[ofChampion], c.recorded[ofChampion] = sameData(f), recorded(f)
	return c
}

// evaluate decides one clause. It also returns which figures of the champion were used.
func (c *evaluation) evaluate(k clause) (tidemill.Clause, tidemill.GateOn) {
	names := slices.ContainsFunc(k.names, func(p path) bool { return p.steps[0] == ofChampion })
	needs := slices.ContainsFunc(k.names, path.needsChampion)
	switch {
	case names && c.Champion == 0:
		result := tidemill.Clause{Text: k.text, Passed: true, Values: valuesOf(k, c.same), Note: "there is no champion, so it passes"}
		for name := range result.Values {
			if strings.HasPrefix(name, ofChampion+".") {
				delete(result.Values, name)
			}
		}
		return result, ""
	case !needs:
		return decide(k, c.same, c.absent), ""
	case c.isSame() && (c.On != tidemill.GateOnRecorded || !lacks(k, c.same)):
		return decide(k, c.same, c.absent), tidemill.GateOnSame
	case c.On == tidemill.GateOnRecorded && c.Recorded != nil:
		result := decide(k, c.recorded, c.absent)
		if result.Note == "" {
			result.Note = fmt.Sprintf("by the figures that version %d was registered with", c.Champion)
		}
		return result, tidemill.GateOnRecorded
	case c.isSame():
		return decide(k, c.same, c.absent), tidemill.GateOnSame
	}
	return tidemill.Clause{Text: k.text, Values: valuesOf(k, c.same), Note: c.unmeasured()}, ""
}

func (c *evaluation) isSame() bool {
	return c.Report.Champion != nil && c.Report.Champion.Version == c.Champion
}

// lacks reports whether a clause uses a figure of the champion that is missing in a world.
func lacks(k clause, world map[string]any) bool {
	return slices.ContainsFunc(k.names, func(p path) bool {
		_, _, found := p.find(world)
		return p.needsChampion() && !found
	})
}

// unmeasured says why there are no figures of the champion on the same data.
func (c *evaluation) unmeasured() string {
	measured := c.Given
	if c.Report.Champion != nil {
		measured = c.Report.Champion.Version
	}
	switch {
	case measured != 0 && measured != c.Champion && c.Report.Champion == nil:
		return fmt.Sprintf("its run was to measure @%d, and @%d is the champion now", measured, c.Champion)
	case measured != 0 && measured != c.Champion:
		return fmt.Sprintf("it was measured together with @%d, and @%d is the champion now", measured, c.Champion)
	case measured == 0:
		return fmt.Sprintf("its run was given no champion to measure, and @%d is the champion now", c.Champion)
	case c.On == tidemill.GateOnRecorded:
		return fmt.Sprintf("its run has not measured the champion, and what @%d was registered with is not at hand", c.Champion)
	}
	return "its run has not measured the champion: write the column champion in predictions.csv, or say gateOn: recorded"
}

// decide evaluates a clause in a world.
func decide(k clause, world map[string]any, absent func(path, int, map[string]any) string) tidemill.Clause {
	result := tidemill.Clause{Text: k.text, Values: valuesOf(k, world)}
	out, _, err := k.program.Eval(world)
	switch passed, isBool := out.(types.Bool); {
	case err == nil && isBool:
		result.Passed = bool(passed)
		return result
	case err == nil:
		result.Note = "it is neither true nor false; compare it, such as metrics.accuracy >= 0.85"
		return result
	case strings.Contains(err.Error(), "cost limit exceeded"):
		result.Note = "it cannot be decided: it reads too much; simplify it"
		return result
	}
	result.Note = "it cannot be decided: " + brief(err.Error())
	if strings.HasPrefix(err.Error(), "no such overload") {
		result.Note = "it cannot be decided: it combines a figure with a value that is not a number"
	}
	for _, p := range k.names {
		if _, at, found := p.find(world); !found && !p.asked {
			result.Note = absent(p, at, world)
			break
		}
	}
	return result
}

// valuesOf returns the figures that a clause names.
func valuesOf(k clause, world map[string]any) map[string]float64 {
	values := map[string]float64{}
	for _, p := range k.names {
		value, _, _ := p.find(world)
		number, is := value.(float64)
		if is && !p.asked && !math.IsNaN(number) && !math.IsInf(number, 0) && len(values) < maxValues {
			values[p.String()] = number
		}
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

// absent says which name is missing, and suggests a similar one.
func (c *evaluation) absent(p path, at int, world map[string]any) string {
	parent := path{steps: p.steps[:at]}
	within, _, _ := parent.find(world)
	known, _ := within.(map[string]any)
	if row, is := within.(matrixRow); is {
		known = row.classes
	}
	name := parent.String()
	switch {
	case name == ofConfusion, name == ofChampion && p.steps[at] == ofConfusion, name == ofChampion && p.steps[at] == "lead":
		return fmt.Sprintf("there is no %s, because no predictions.csv of the run has it%s", p.upTo(at), strings.Replace(c.uncounted(), "; ", ": ", 1))
	case len(p.steps) > 1 && p.steps[0] == ofData && at == 2:
		return fmt.Sprintf("the size of %s is not known, because it came from a URI", brief(p.steps[1]))
	}
	text := notWithin(p.steps[:at], p.steps[at], slices.Sorted(maps.Keys(known)))
	if name == ofMetrics && c.Report.Measured == nil {
		text += c.uncounted()
	}
	return text
}

// uncounted says why predictions.csv was not counted, if it exists. Then the figures that
// Tidemill computes are not among the metrics.
func (c *evaluation) uncounted() string {
	if note := c.fileNote(); note != "" {
		return "; " + note
	}
	return ""
}

// fileNote returns the report's note about the file of predictions; empty if there is none.
func (c *evaluation) fileNote() string {
	for _, note := range c.Report.Notes {
		if strings.HasPrefix(note, "predictions.csv ") {
			return brief(note)
		}
	}
	return ""
}

func (p path) upTo(at int) string { return spellOf(p.steps[:at+1]) }

// worldOf returns the values that clauses can read about a version. The champion's figures are
// added later.
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

// nest arranges metrics by their paths: by.class.f1 becomes f1 in class in by. Each metric is
// also found by its whole name, because a part of its path may already be a number.
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

// confusion arranges figures by the labels of their classes; it is empty without figures. A row without an answer
// has the empty label. That is not a class: it occurs only as an answer in the matrix.
func confusion(f *tidemill.Figures) map[string]any {
	if f == nil {
		return map[string]any{}
	}
	classes, matrix := map[string]any{}, map[string]any{}
	for _, c := range f.Classes {
		if c.Label == "" {
			continue
		}
		matrix[c.Label] = newMatrixRow(classes)
		classes[c.Label] = map[string]any{"precision": c.Precision.Value, "recall": c.Recall.Value, "f1": c.F1,
			"support": float64(c.Support), "predicted": float64(c.Predicted)}
	}
	for _, c := range f.Cells {
		if row, is := matrix[f.Classes[c.Truth].Label].(matrixRow); is {
			row.cells[f.Classes[c.Predicted].Label] = float64(c.Count)
		}
	}
	return map[string]any{"examples": float64(f.Examples), "accuracy": f.Accuracy.Value, "macroF1": f.MacroF1.Value, "classes": classes, "matrix": matrix}
}

// matrixRow is a row of the confusion matrix. A pair of classes without rows of the test data counts as 0, but is not among
// the pairs that a clause goes through.
type matrixRow struct {
	traits.Mapper
	cells, classes map[string]any
}

func newMatrixRow(classes map[string]any) matrixRow {
	cells := map[string]any{}
	return matrixRow{types.NewStringInterfaceMap(types.DefaultTypeAdapter, cells), cells, classes}
}

func (r matrixRow) count(label string) (any, bool) {
	if n, is := r.cells[label]; is {
		return n, true
	}
	_, is := r.classes[label]
	return 0.0, is || label == "" // the empty label means rows without an answer
}

func (r matrixRow) Find(label ref.Val) (ref.Val, bool) {
	if text, is := label.Value().(string); is {
		n, known := r.count(text)
		return types.DefaultTypeAdapter.NativeToValue(n), known
	}
	return r.Mapper.Find(label)
}

func (r matrixRow) Get(label ref.Val) ref.Val {
	if n, is := r.Find(label); is {
		return n
	}
	return r.Mapper.Get(label)
}

func (r matrixRow) Contains(label ref.Val) ref.Val {
	_, is := r.Find(label)
	return types.Bool(is)
}

// inputs says how much training data there was. For data from a URI that is not known.
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

// sameData returns the champion's figures that the run has measured. If the run measured no
// version or another one, only the champion's version is known.
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

// recorded returns the champion's figures from its registration.
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
