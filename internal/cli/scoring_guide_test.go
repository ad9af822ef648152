//go:build slow && unix

package cli

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/platform"
)

// Two bots' messages are scored by their own models. A better version is promoted and rolled back,
// and a message without a model becomes a dead letter.
func TestScoringIsFollowed(t *testing.T) {
	needGo(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3 here, which docs/scoring.md asks for")
	}
	t.Parallel()
	g := openGuide(t, "docs/scoring.md", filepath.Join(repository(t), "examples", "intents"))
	mention(t, "validate", g.do(), "is valid", "1 scorer")
	g.do()
	for _, bot := range []string{"bot-shop", "bot-bank"} {
		g.until("models show intent/"+bot+"@1", ", champion:")
		g.until("score intents --key "+bot+` -d {"text":"hi"}`, "(intent/"+bot+"@1)") // the gateway's scorer loads new champions by itself
	}
	g.do()
	g.scored(2)
	mention(t, "the scores", g.do(), `"label":"track-order"`, `"label":"lost-card"`, "model=intent/bot-shop modelversion=1")
	g.until("scorers", "intents", "messages → scored")
	g.until("scorers intents", "intent/bot-shop", "intent/bot-bank", "2 events scored")
	mention(t, "scorers", g.do(), "messages → scored", "intent/{key}, the key is subject, text from data.text")
	mention(t, "score", g.do(), "refund", "(intent/bot-shop@1)")
	running, _, err := platform.Find(g.data)
	if err != nil {
		t.Fatal(err)
	}
	g.env = append(g.env, connect.EnvURL+"="+running.URL)
	mention(t, "tensors as JSON", g.do(), `"model_name":"intent/bot-shop"`, `"outputs":[{"name":`)
	mention(t, "binary tensors", g.do(), "'binary_data_size': ", "(0.")
	g.env = nil
	g.do()
	g.until("models show intent/bot-bank@2", ", champion:")
	g.do()
	g.swapped("1 → 2")
	mention(t, "rollback", g.do(), "intent/bot-bank")
	g.do()
	g.swapped("2 → 1")
	mention(t, "the swaps", g.do(), "1 → 2", "2 → 1", "messages/")
	mention(t, "why", g.do(), "scorer/intents#messages/11/0", "scored by model intent/bot-", "made by run", "caused by event message")
	mention(t, "rescore", g.do(), "events answered", "/rescore/")
	g.do()
	g.until("dead-letters", "bot-new")
	mention(t, "dead letters", g.do(), "scorer/intents", "intent/bot-new has no champion")
	g.end()
}

// scored waits until n events are scored.
func (g *guide) scored(n int) {
	g.Helper()
	eventually(g.T, func() bool {
		return strings.Count(g.until("tail scored --from beginning --no-follow"), "tidemill.scored") == n
	})
}

// swapped publishes until the scorer uses the new version. Until that is loaded, the version before
// answers.
func (g *guide) swapped(versions string) {
	g.Helper()
	eventually(g.T, func() bool {
		ok(g.T, "publish", "message", "--subject", "bot-bank", "-d", `{"text":"hi"}`, "--data", g.data)
		return strings.Contains(g.until("scorers intents"), versions)
	})
}
