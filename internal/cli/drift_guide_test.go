//go:build slow && unix

package cli

import (
	"path/filepath"
	"testing"
)

// A shop's customers begin to write something else. The model drifts, the alarm starts a run, and a promotion ends it.
func TestDriftIsFollowed(t *testing.T) {
	needGo(t)
	t.Parallel()
	g := openGuide(t, "docs/drift.md", filepath.Join(repository(t), "examples", "intents"))
	g.do()
	g.do()
	g.until("models show intent/bot-shop@1", ", champion:")
	g.until(`score intents --key bot-shop -d {"text":"hi"}`, "(intent/bot-shop@1)")
	g.do()
	g.scored(400)
	g.do()
	g.until("drift", "labels", "input.country")
	g.until("status", "1 drifting", "tidemill drift")
	mention(t, "drift", g.do(), "intent/bot-shop@1", "labels", "refund", "input.country", "NL", "scored/", "messages/")
	mention(t, "the facts", g.do(), "tidemill.model.drifted", "bot-shop", "figure=labels", "figure=input.country", `"value":"refund"`)
	g.until("models show intent/bot-shop@2", "refused")
	mention(t, "the model", g.do(), "drifting", "labels: refund", "refused")
	mention(t, "after a promotion", g.do(), "No model has drifted")
	g.end()
}
