package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/evaluate"
)

const (
	predictionsFile = evaluate.FileName
	reportFile      = "report.json"

	mostPredictions = 256 << 20 // bytes that are counted
	mostReport      = 64 << 20
)

// measure counts a run's predictions and lays them beside what its trainer says.
func (r *Registrar) measure(ctx context.Context, w *work) (*tidemill.Report, error) {
	p, fault, err := r.predictions(ctx, w.result.Artifact)
	if err != nil {
		return nil, err
	}
	champion := 0
	if w.Champion != nil {
		champion = w.Champion.Version
	}
	report := evaluate.Report(p, fault, w.result.Metrics, champion)
	return &report, nil
}

// predictions are counted as they are read. The fault is theirs; the error is of
// what they lie in, and another try may do without.
func (r *Registrar) predictions(ctx context.Context, artifact string) (p *evaluate.Predictions, fault, err error) {
	f, err := r.find(ctx, artifact, predictionsFile)
	switch {
	case err != nil || f == nil:
		return nil, nil, err
	case f.Size > mostPredictions:
		return nil, fmt.Errorf("%s has %d bytes, and at most %d are counted: predict fewer examples", predictionsFile, f.Size, mostPredictions), nil
	}
	from, err := r.o.Store.OpenFile(ctx, *f)
	if err != nil {
		return nil, nil, gone(artifact, err)
	}
	defer from.Close()
	heard := &hearing{Reader: from}
	counted, fault := evaluate.Read(heard)
	if heard.err != nil {
		return nil, nil, gone(artifact, heard.err)
	}
	return &counted, fault, nil
}

// hearing tells an error of what is read from one of whoever reads it.
type hearing struct {
	io.Reader
	err error
}

// Read is the reader's.
func (h *hearing) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	return n, err
}

// find looks a file up in a tree: nil if the tree has none of its name.
func (r *Registrar) find(ctx context.Context, tree, path string) (found *api.File, err error) {
	err = r.o.Store.Walk(ctx, tree, path, "", func(f api.File) error {
		if f.Path == path {
			found = &f
		}
		return nil
	})
	if err != nil {
		return nil, gone(tree, err)
	}
	return found, nil
}

// gone says of what is not in the store any more that nobody need look again.
func gone(tree string, err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return hopelessf("tree %s, which the run made, cannot be read from the store any more: %w; ask for the run again", tree, err)
	}
	return fmt.Errorf("read tree %s, which the run made: %w", tree, err)
}

// keep puts a report into the store, as a tree of its own.
func (r *Registrar) keep(ctx context.Context, report *tidemill.Report) (tree string, err error) {
	text, err := json.Marshal(report)
	if err != nil {
		return "", hopelessf("write the report: %w", err)
	}
	sum := sha256.Sum256(text)
	f := api.File{Path: reportFile, Digest: hex.EncodeToString(sum[:]), Size: int64(len(text))}
	if err = r.o.Store.PutObject(ctx, f.Digest, f.Size, bytes.NewReader(text)); err != nil {
		return "", fmt.Errorf("keep the report: %w", err)
	}
	ref, err := r.o.Store.Tree(ctx, []api.File{f})
	if err != nil {
		return "", fmt.Errorf("keep the report: %w", err)
	}
	return ref.Tree, nil
}

// Report is what was measured of a version.
func (r *Registrar) Report(ctx context.Context, v *tidemill.Version) (tidemill.Report, error) {
	report, err := r.readReport(ctx, v.Report)
	if err != nil {
		return report, fmt.Errorf("read the report of %s: %w", tidemill.VersionName(v.Model, v.Number), err)
	}
	return report, nil
}

func (r *Registrar) readReport(ctx context.Context, tree string) (report tidemill.Report, err error) {
	f, err := r.o.Store.File(ctx, tree, reportFile)
	if err != nil {
		return report, err
	}
	from, err := r.o.Store.OpenFile(ctx, f)
	if err != nil {
		return report, err
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, mostReport))
	if err != nil {
		return report, err
	}
	return report, json.Unmarshal(text, &report)
}

// reportOf is the report that a version was registered with. Where the store has
// it no more, what the version is registered with has to do: the first of its
// metrics.
func (r *Registrar) reportOf(ctx context.Context, model string, number int) (*tidemill.Report, error) {
	v, err := r.record(ctx, model, number)
	switch {
	case err != nil:
		return nil, err
	case v == nil:
		return nil, fmt.Errorf("look up %s: %w", tidemill.VersionName(model, number), ErrUnknown)
	}
	report, err := r.Report(ctx, &v.Version)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return &tidemill.Report{Metrics: v.Metrics, Notes: []string{"its report cannot be read any more: " + err.Error()}}, nil
	}
	return &report, err
}

// chosen are the metrics that a version is registered with: those that its gate
// names, then those that lie least deep.
func chosen(all map[string]float64, clauses []string) map[string]float64 {
	if len(all) <= tidemill.MaxMetrics {
		return all
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	gate := strings.Join(clauses, "\n")
	unnamed := func(name string) int {
		if strings.Contains(gate, "metrics."+name) {
			return 0
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(unnamed(a), unnamed(b)), cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), strings.Compare(a, b))
	})
	few := make(map[string]float64, tidemill.MaxMetrics)
	for _, name := range names[:tidemill.MaxMetrics] {
		few[name] = all[name]
	}
	return few
}
