//go:build slow && unix

package cli

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A newcomer gets from init to a new trainer. Its first version is refused, because it is
// worse than the champion; its second becomes the champion.
func TestTrainIsFollowed(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3 here, which docs/train.md asks for")
	}
	t.Parallel()
	g := openGuide(t, "docs/train.md", t.TempDir())
	mention(t, "init", g.do(), "wrote ")
	g.do()
	g.until("runs", "intent")
	g.until("models show intent/bot-42@1", ", champion:")
	mention(t, "models", g.do(), "intent/bot-42", "accuracy 0.900", "there is no champion")
	mention(t, "try", g.do(), "accuracy 0.833")
	g.start(1)
	g.until("models show intent/bot-42@2", ", refused:")
	mention(t, "a worse version", g.do(), ", refused:", "0.833", "champion.metrics.accuracy")
	g.do()
	g.start(2)
	g.until("models show intent/bot-42@3", ", champion:")
	mention(t, "a better version", g.do(), "0.933", "run", "bots/bot-42")
	g.end()
}

// applied waits until up has applied its nth change of the config.
func (g *guide) applied(n int) {
	g.Helper()
	eventually(g.T, func() bool { return strings.Count(g.server.stderr.String(), `"config: applied"`) >= n })
}

// start follows the block that starts a run, after up has applied its nth change of the config.
func (g *guide) start(n int) {
	g.Helper()
	g.applied(n)
	mention(g.T, "runs start", g.do(), "intent")
}

// Three bots: two get a champion, the third's version is refused. Better data are promoted, worse
// ones are refused.
func TestIntentsIsFollowed(t *testing.T) {
	needGo(t)
	t.Parallel()
	g := openGuide(t, "examples/intents/README.md", repository(t))
	mention(t, "validate", g.do(), "is valid")
	g.do()
	for bot, becomes := range map[string]string{"bot-shop": ", champion:", "bot-bank": ", champion:", "bot-travel": ", refused:"} {
		g.until("models show intent/"+bot+"@1", becomes)
	}
	mention(t, "models", g.do(), "intent/bot-shop", "intent/bot-bank", "intent/bot-travel", "metrics.accuracy >= 0.8", "refused")
	g.do()
	g.until("models show intent/bot-bank@2", ", champion:")
	mention(t, "better data", g.do(), "champion", "0.915", "0.881")
	g.do()
	g.until("models show intent/bot-shop@2", ", refused:")
	mention(t, "worse data", g.do(), "champion.metrics.accuracy", "0.878")
	mention(t, "rollback and why", g.do(), "to see how it goes", "bots/bot-bank")
	mention(t, "try", g.do(), "accuracy 0.878")
	g.end()
}

// A put with new data makes all three stages run. A put that changes no result makes only the first
// one run.
func TestStagesIsFollowed(t *testing.T) {
	needGo(t)
	t.Parallel()
	g := openGuide(t, "examples/stages/README.md", repository(t))
	mention(t, "validate", g.do(), "is valid")
	g.do()
	g.until("models show intent/bot-shop@1", ", champion:")
	mention(t, "the first two weeks", g.do(), "clean", "split", "intent", "clean/bot-shop", "split/bot-shop", "Version 1, champion")
	g.do()
	g.until("models show intent/bot-shop@2", "Version 2")
	if out := g.do(); g.commits("clean/bot-shop") != 2 || g.commits("split/bot-shop") != 2 {
		t.Errorf("a third week is not one commit more:\n%s", out)
	}
	for dataset, added := range map[string]string{"clean/bot-shop": "week-3.csv", "split/bot-shop": "train-week-3.csv"} {
		commits := commitOf.FindAllString(g.until("data log "+dataset), -1)
		diff := g.until("data diff "+dataset+" "+commits[1]+" "+commits[0], added)
		if strings.Contains(diff, "week-1") || strings.Contains(diff, "week-2") {
			t.Errorf("%s: more than the third week is new:\n%s", dataset, diff)
		}
	}
	g.do()
	g.wantRuns("clean", 3)
	g.do()
	g.wantRuns("split", 2)
	g.wantRuns("intent", 2)
	if n := g.commits("clean/bot-shop"); n != 2 {
		t.Errorf("a week of nothing new is commit %d", n)
	}
	mention(t, "why", g.do(), "intent/bot-shop", "split/bot-shop", "clean/bot-shop", "raw/bot-shop")
	g.end()
}

var commitOf = regexp.MustCompile(`(?m)^[0-9a-z]{8,}`)

// commits returns how many commits a dataset has.
func (g *guide) commits(dataset string) int {
	g.Helper()
	return len(commitOf.FindAllString(g.until("data log "+dataset), -1))
}

// wantRuns waits until a recipe has had n runs, all successful.
func (g *guide) wantRuns(recipe string, n int) {
	g.Helper()
	eventually(g.T, func() bool {
		return strings.Count(g.until("runs --state succeeded --recipe "+recipe+" -o json"), `"recipe": "`+recipe+`"`) >= n
	})
	if got := strings.Count(g.until("runs --recipe "+recipe+" -o json"), `"recipe": "`+recipe+`"`); got != n {
		g.Errorf("%s ran %d times, not %d", recipe, got, n)
	}
}

func needGo(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go here, which the example is built with")
	}
}

// The configs of all examples are valid.
func TestExamplesConfigs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*", "tidemill.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		mention(t, file, ok(t, "validate", "-f", file), "is valid")
	}
}
