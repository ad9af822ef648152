package client

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestWhatIsAskedOfModels(t *testing.T) {
	seen := 7
	since := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for want, ask := range map[string]func(*Gateway) error{
		"GET /base/api/v1/models?awaiting=true&limit=7&pinned=true&prefix=intent%2F&recipe=intent ": func(g *Gateway) error {
			_, err := g.Models(t.Context(), ModelQuery{Recipe: "intent", Prefix: "intent/", Awaiting: true, Pinned: true, Limit: 7})
			return err
		},
		"GET /base/api/v1/models?after=x&key=bot-42&stale=7d ": func(g *Gateway) error {
			_, err := g.Models(t.Context(), ModelQuery{Key: "bot-42", Stale: "7d", After: "x"})
			return err
		},
		"GET /base/api/v1/fleet?recipe=intent&stale=1d ": func(g *Gateway) error { _, err := g.Fleet(t.Context(), "intent", "1d"); return err },
		"GET /base/api/v1/model?model=intent%2Fbot-42&version=champion ": func(g *Gateway) error {
			_, err := g.Model(t.Context(), "intent/bot-42", "champion")
			return err
		},
		`POST /base/api/v1/model/promote {"model":"m","version":8,"basis":7,"force":true}`: func(g *Gateway) error {
			_, err := g.Promote(t.Context(), tidemill.ActionPromote, api.PromotionAsked{Model: "m", Version: 8, Basis: &seen, Force: true})
			return err
		},
		`POST /base/api/v1/model/unpin {"model":"m"}`: func(g *Gateway) error {
			_, err := g.Promote(t.Context(), tidemill.ActionUnpin, api.PromotionAsked{Model: "m"})
			return err
		},
		`POST /base/api/v1/models/rollback {"since":"2026-11-22T03:00:00Z","recipe":"intent","dryRun":true}`: func(g *Gateway) error {
			_, err := g.RollbackModels(t.Context(), "n", api.RollbackAsked{Since: since, Recipe: "intent", DryRun: true})
			return err
		},
		"GET /base/api/v1/promotions ": func(g *Gateway) error { _, err := g.Promotions(t.Context()); return err },
		`POST /base/api/v1/promotions/freeze {"recipe":"intent","reason":"r"}`: func(g *Gateway) error {
			_, err := g.FreezePromotions(t.Context(), api.FreezeAsked{Recipe: "intent", Reason: "r"})
			return err
		},
		"POST /base/api/v1/promotions/thaw {}": func(g *Gateway) error { _, err := g.ThawPromotions(t.Context(), api.FreezeAsked{}); return err },
	} {
		var asked []string
		if err := ask(gatewayOf(t, asIs("{}", &asked))); err != nil || len(asked) != 1 || asked[0] != want {
			t.Errorf("asked is %q (%v), not %q", asked, err, want)
		}
	}
}

// While the ledger has stopped, a command prints why at once and does not ask again.
func TestAStoppedLedgerIsSaidAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		answer := asIs(`{"type": "`+api.ProblemBase+api.LedgerStopped+`", "status": 503, "detail": "the ledger has stopped: act"}`, &asked)
		g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			answer(w, r)
		})
		began := time.Now()
		_, err := g.Models(t.Context(), ModelQuery{})
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "has stopped: act") || len(asked) != 1 || took > 0 {
			t.Errorf("%v after %v and %d requests", err, took, len(asked))
		}
	})
}
