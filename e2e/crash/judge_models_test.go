//go:build slow

package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// modelNow folds the facts of the model again.
func (r *round) modelNow(ctx context.Context) (m fold.Model, err error) {
	_, m, err = r.modelFacts(ctx)
	return m, err
}

// modelFacts returns the facts of the model, without repeats of source and id, and the model folded
// from them.
func (r *round) modelFacts(ctx context.Context) (all []broker.View, m fold.Model, err error) {
	b, err := r.dial(ctx)
	if err != nil {
		return nil, m, err
	}
	defer b.Close()
	known := map[tidemill.Cause]bool{}
	err = read(ctx, b, tidemill.StreamFacts, func(e *broker.Incoming) {
		of, _ := e.Attribute(tidemill.AttrModel)
		if of != model || !strings.HasPrefix(e.Type, "tidemill.model.") {
			return
		}
		v := e.View.Clone()
		f := fold.Fact{Partition: e.Position().Partition, Offset: e.Offset, ID: v.ID, Type: v.Type, Model: of, Key: v.Subject, At: e.Time, Data: v.Data}
		f.Run, _ = v.Attribute(tidemill.AttrRun)
		m.Apply(f)
		if c := (tidemill.Cause{Source: v.Source, ID: v.ID}); !known[c] {
			known[c] = true
			all = append(all, v)
		}
	})
	return all, m, err
}

// judgeModel checks the model of the runs: one version per run, one verdict per version, and the
// newer version is the champion.
func (r *round) judgeModel(ctx context.Context, runs []tidemill.Run) (found []string) {
	fault := func(format string, words ...any) { found = append(found, fmt.Sprintf(format, words...)) }
	facts, m, err := r.modelFacts(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	newer := m.OfRun(runs[1].ID)
	if m.Last != events || newer == nil || m.Champion != newer.Number || len(m.Owed) > 0 {
		fault("the model is %+v", m)
	}
	for i := range runs {
		said := map[string]int{}
		for _, v := range facts {
			if run, _ := v.Attribute(tidemill.AttrRun); run == runs[i].ID {
				said[v.Type]++
				if fine := checkExplained(v); fine != nil {
					fault("%s of run %d: %v", v.Type, i+1, fine)
				}
			}
		}
		delete(said, tidemill.TypeModelPromotionProposed) // a proposal may have been void, and then repeated
		want := map[string]int{tidemill.TypeModelRegistered: 1, tidemill.TypeModelPromoted: 1}
		if h := m.OfRun(runs[i].ID); h != nil && h.State == tidemill.VersionRefused { // the newer version was judged first
			want = map[string]int{tidemill.TypeModelRegistered: 1, tidemill.TypeModelRefused: 1}
		}
		if !maps.Equal(said, want) {
			fault("of run %d the log says %v, want %v", i+1, said, want)
		}
	}
	return append(found, r.judgeVersions(ctx, m)...)
}

// checkExplained returns an error for an announcement without a sentence.
func checkExplained(v broker.View) error {
	if v.Type == tidemill.TypeModelRegistered || v.Type == tidemill.TypeModelPromotionProposed {
		return nil
	}
	var d tidemill.ModelAnnounced
	if err := json.Unmarshal(v.Data, &d); err != nil {
		return err
	}
	if d.Judgement == nil || d.Judgement.Sentence == "" || d.Origin == nil || d.Artifact == "" {
		return errors.New("it explains nothing: " + string(v.Data))
	}
	return nil
}

// judgeVersions compares the API's versions with the log, and checks each version's files.
func (r *round) judgeVersions(ctx context.Context, m fold.Model) (found []string) {
	shown, err := r.awaitShown(ctx, m)
	if err != nil {
		found = append(found, fmt.Sprintf("people are shown %+v, and the log says %+v: %v", shown, m, err))
	}
	s, err := openStore(ctx, r)
	if err != nil {
		return append(found, err.Error())
	}
	defer s.Close()
	for _, v := range shown.All {
		if v.Judgement == nil || v.Metrics["accuracy"] < 0.66 || v.Metrics["accuracy"] > 0.67 {
			found = append(found, fmt.Sprintf("version %d is %+v", v.Number, v))
		}
		found = append(found, filesOf(ctx, s, v)...)
	}
	return found
}

// awaitShown waits until the API shows the same versions as the log, because the API follows the
// log.
func (r *round) awaitShown(ctx context.Context, m fold.Model) (shown api.ModelWhole, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		shown = api.ModelWhole{}
		err = r.get(ctx, "/api/v1/model?model="+model, &shown)
		unjudged := func(v api.ModelVersion) bool { return v.Judgement == nil }
		if err == nil && shown.Champion == m.Champion && len(shown.All) == events && !slices.ContainsFunc(shown.All, unjudged) {
			return shown, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return shown, errors.Join(err, context.Cause(ctx))
		}
	}
}

func filesOf(ctx context.Context, s *store.Store, v api.ModelVersion) (found []string) {
	for tree, path := range map[string]string{v.Artifact: "model.onnx", v.Report: "report.json"} {
		if _, err := s.File(ctx, tree, path); err != nil {
			found = append(found, fmt.Sprintf("of version %d there is no %s: %v", v.Number, path, err))
		}
	}
	return found
}
