package seed

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/platform"
)

// The product accepts all facts of a small install, and its keys end as the plans say.
func TestTheLedgerHasWhatWasPlanned(t *testing.T) {
	dir := t.TempDir()
	size := Size{Keys: 600, Letters: 40}
	if err := write(t.Context(), dir, size); err != nil {
		t.Fatal(err)
	}
	l := openLedger(t, filepath.Join(dir, dataFolder))
	for _, p := range plans(size) {
		if p.model == "" {
			continue
		}
		m, err := l.Model(t.Context(), p.model)
		if p.fate == noModel {
			if err == nil && len(m.Versions) > 0 {
				t.Errorf("%s has versions: %+v", p.model, m)
			}
			continue
		}
		if err != nil {
			t.Fatal(p.model, err)
		}
		newest := m.Versions[len(m.Versions)-1]
		is := map[fate]bool{
			refused:  newest.State == "refused",
			awaiting: newest.State == "awaiting",
			pinned:   m.Pin != nil,
			unserved: m.Unserved != nil,
			drifting: len(m.Drifts) == 1,
			tried:    len(m.Trials) == 1 && m.OnTrial() == nil,
			onTrial:  m.OnTrial() != nil,
			rolled:   len(m.Changes) > 1 && m.Changes[len(m.Changes)-1].Action == "rollback" || m.Previous == 0,
			fresh:    m.Champion == newest.Number,
		}
		if ok, known := is[p.fate]; known && !ok || m.Champion == 0 || m.Last != p.versions || len(m.Owed) > 0 {
			t.Errorf("%s shall be %s: %+v", p.model, p.fate, m)
		}
	}
	page, err := l.Runs(t.Context(), ledger.Query{Limit: 1})
	if err != nil || page.Total < size.Keys*runsPerKey {
		t.Errorf("there are %d runs of %d keys: %v", page.Total, size.Keys, err)
	}
}

// openLedger opens the ledger of a data folder, as tidemill up does, and waits until it has all facts.
func openLedger(t *testing.T, data string) *ledger.Ledger {
	t.Helper()
	p, err := platform.Open(t.Context(), platform.Options{Embedded: &embedded.Options{Dir: data}, Runs: &platform.RunsOptions{Data: data},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	l := p.Ledger()
	if err := l.CaughtUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// A copy is a whole install.
func TestCopy(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	if err := os.MkdirAll(filepath.Join(from, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "data", "x"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Copy(from, to); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(to, "data", "x")
	if text, err := os.ReadFile(file); err != nil || string(text) != "1" {
		t.Fatal(string(text), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s has the permissions %v: %v", file, info.Mode(), err)
	}
}
