//go:build slow && unix

package cli

import (
	"os/exec"
	"strings"
	"testing"
)

// A worse trainer stops by itself and its keys go back; a better one reaches all keys.
func TestRolloutsIsFollowed(t *testing.T) {
	for _, program := range []string{"perl", "python3", "seq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("there is no " + program + " here, which docs/rollouts.md asks for")
		}
	}
	t.Parallel()
	g := openGuide(t, "docs/rollouts.md", t.TempDir())
	g.do()
	g.do()
	g.do()
	g.until("models --limit 100", "intent/bot-1 ", "intent/bot-40 ")
	g.until("rollouts", "adopted")
	g.wantRuns("intent", 40)
	mention(t, "rollouts", g.do(), "intent", "adopted")
	g.do()
	g.until("rollouts", "intent/1", "running")
	g.do()
	g.until("rollouts show intent", "stopped", "0 to go", "0 cannot")
	shown := g.do()
	g.until("status", "intent/1 stopped", "tidemill rollouts show intent")
	mention(t, "a bad change", shown, "[50%] → 100%", "fleet.worse > 0.02", "rolled back", "tidemill rollouts abort or resume intent")
	g.do()
	g.until("rollouts", "aborted")
	eventually(t, func() bool {
		return strings.Count(g.until("runs --state succeeded --limit 100 -o json"), `"recipe": "intent"`) >= 80
	})
	models := g.until("models --limit 100 -o json")
	if n := strings.Count(models, `"champion": 1,`) + strings.Count(models, `"champion": 2,`); n != 40 {
		t.Errorf("%d models have a champion:\n%s", n, models)
	}
	g.do()
	g.until("rollouts", "intent/2", "running")
	g.do()
	g.until("rollouts", "intent/2", "done")
	mention(t, "a good change", g.do(), "intent/2", "done")
	g.end()
}
