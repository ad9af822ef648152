package main

import (
	"context"
	"fmt"
	"math"

	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/scenario"
)

// treesAnswer is the tolerance for the sum of the leaves, which engines add as float32.
const treesAnswer = 1e-5

// checkTrees compares the answers to all different rows with a walk in the plainest way.
func (l *inferLoop) checkTrees(t *fleet.Trees) error {
	oracle := t.Oracle(fleet.Seed(0, 1))
	w, columns := &l.workers[0], t.Features
	for first := 0; first < l.rows; first += l.batch {
		l.first = first % l.rows
		if err := w.infer(l, inferGroup{rows: l.batch}); err != nil {
			return err
		}
		if len(w.out[0].Floats) != l.batch {
			return fmt.Errorf("%d rows have %d answers", l.batch, len(w.out[0].Floats))
		}
		for i, got := range w.out[0].Floats {
			row := l.floats[(l.first+i)*columns:][:columns]
			if want := oracle(row); math.Abs(float64(got)-want) > treesAnswer {
				return fmt.Errorf("the answer to row %d is %v and should be %v", l.first+i, got, want)
			}
		}
	}
	return nil
}

// The figures of trees. The names of engines are those of the table.
const (
	figureTreesOne   = "one row"
	figureTreesBatch = "rows of batches / ONNX Runtime"
)

// measureTrees runs trees alone in each engine, on one core: row by row, and in batches.
func measureTrees(ctx context.Context, p scorePlan, s *scenario.Scenario, built contenders, o *scoreOutcome) (absent map[string]string, err error) {
	why := ""
	if !built.runtime {
		why = "there is no ONNX Runtime here; make onnxruntime fetches it"
	}
	one, many := map[string]*turns{engineNative: {}, engineORT: {}}, map[string]*turns{engineNative: {}, engineORT: {}}
	for range p.rounds {
		for _, engine := range []string{engineNative, engineORT} {
			for _, of := range []struct {
				into *turns
				rows int
			}{{one[engine], 1}, {many[engine], s.Batch}} {
				if engine == engineORT && why != "" {
					continue
				}
				t := inferTask{Fleet: s.Fleet(), Trees: s.Trees, Engine: engine, Batch: of.rows, Warm: s.Warm, Records: s.Events, Profile: p.profile}
				r, err := doAs(ctx, []string{p.self, roleInfer}, t, 1)
				if err != nil {
					return nil, err
				}
				*of.into = append(*of.into, measuredTurn{Result: r})
			}
		}
	}
	return tellTrees(s, o, one, many, why), nil
}

// tellTrees fills the table. The reason is why ONNX Runtime was not measured.
func tellTrees(s *scenario.Scenario, o *scoreOutcome, one, many map[string]*turns, why string) (absent map[string]string) {
	for _, of := range []struct{ engine, name string }{{engineNative, "our Go engine"}, {engineORT, "ONNX Runtime"}} {
		if len(*one[of.engine]) == 0 {
			o.Notes = append(o.Notes, of.name+" was not measured: "+why)
			return map[string]string{figureTreesBatch: why}
		}
		ours := of.engine == engineNative
		o.Rows = append(o.Rows, one[of.engine].row(of.name+", row by row", ours), many[of.engine].row(fmt.Sprintf("%s, %d rows", of.name, s.Batch), ours))
		o.Figures[figureTreesOne] = o.Rows[0].CPU
	}
	o.Figures[figureTreesBatch] = medianRatio(many[engineORT].figures(cpuOf), many[engineNative].figures(cpuOf))
	return nil
}
