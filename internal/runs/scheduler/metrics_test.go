package scheduler

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
)

// Prometheus sees the first failure of a recipe, because its counter was 0 before.
func TestEndsBeginWithZero(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	conf := &config.Config{Recipes: []config.Recipe{{Name: "intent"}}}
	if _, err := New(Options{Ledger: &ledger.Ledger{}, Store: &store.Store{}, Config: func() *config.Config { return conf }, Registerer: registry}); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registry, "tidemill_run_attempts_ended_total"); n != 3 || err != nil {
		t.Errorf("%d series, %v; want succeeded, failed and lost", n, err)
	}
}
