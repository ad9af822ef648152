package registry

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/data/ledger"
)

// judgedFact is a version's verdict against the champion of the model as it was
// read. The log takes it only while that is the champion.
func (r *Registrar) judgedFact(ctx context.Context, w *work, m *tidemill.Model, h *tidemill.Held) (*fact, error) {
	g, err := gate.Compile(w.Judge.Gate)
	if err != nil {
		return nil, hopelessf("read the gate that the run began with: %w; if a newer version of Tidemill has written it, replay this where that runs", err)
	}
	facts, err := r.facts(ctx, w, m, h)
	if err != nil {
		return nil, err
	}
	j := g.Judge(m.Name, h.Number, facts)
	return &fact{typ: tidemill.TypeModelPromotionProposed, id: tidemill.ID("judged", m.Name, w.Run, strconv.FormatInt(m.Turn, 10)),
		source: r.o.Names.Source(byPromote), model: m.Name, key: m.Key, version: h.Number, recipe: w.Recipe, run: w.Run, chain: w.chain,
		data: tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: h.Number, Run: w.Run, Basis: m.Champion, Turn: m.Turn,
			Hold: hold(w.Judge.Promote, w.Recipe, r.o.Asked()), Judgement: &j, Origin: &w.Origin, Artifact: w.result.Artifact}}, nil
}

// facts are what the gate decides by.
func (r *Registrar) facts(ctx context.Context, w *work, m *tidemill.Model, h *tidemill.Held) (gate.Facts, error) {
	f := gate.Facts{Origin: w.Origin, Seconds: commandTook(w.result.Stages), Bytes: w.result.Bytes, Files: w.result.Files, GPU: w.result.GPUSeconds,
		PeakMemory: w.result.PeakMemory, Champion: m.Champion, On: w.Judge.On}
	if w.Champion != nil {
		f.Given = w.Champion.Version
	}
	report, err := r.reported(ctx, w, h.Number)
	if err != nil {
		return f, err
	}
	f.Report = *report
	if m.Champion == 0 || w.Judge.On != tidemill.GateOnRecorded {
		return f, nil
	}
	recorded, err := r.reportOf(ctx, m.Name, m.Champion)
	f.Recorded = recorded
	return f, err
}

// reported is the report of a version at work, which somebody may have registered
// before us.
func (r *Registrar) reported(ctx context.Context, w *work, number int) (_ *tidemill.Report, err error) {
	if w.report == nil {
		w.report, err = r.reportOf(ctx, w.Model, number)
	}
	return w.report, err
}

func commandTook(stages []tidemill.Stage) float64 {
	for _, s := range stages {
		if s.Name == "run" {
			return s.Seconds
		}
	}
	return 0
}

// hold is why a version that has passed waits for a person; empty if it need not.
func hold(promote tidemill.Promote, recipe string, asked *tidemill.Commands) string {
	if p, frozen := asked.PromotionsFrozen(recipe); frozen {
		by := p.By
		if by == "" {
			by = "somebody"
		}
		return "promotions are frozen by " + by + " since " + p.Since.UTC().Format(time.RFC3339)
	}
	if promote == tidemill.PromoteManual {
		return "recipe " + recipe + " has people promote (promote: manual)"
	}
	return ""
}

// record is a version that is kept; nil if it is not.
func (r *Registrar) record(ctx context.Context, model string, number int) (*ledger.VersionRecord, error) {
	all, err := r.o.Ledger.Versions(ctx, model, number)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", tidemill.VersionName(model, number), err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return &all[0], nil
}
