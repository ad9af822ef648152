//go:build slow && unix

package cli

import (
	"path/filepath"
	"testing"
)

// Two messages are answered. A label and a person give their truths, and one answer was wrong.
func TestOutcomesAreFollowed(t *testing.T) {
	needGo(t)
	t.Parallel()
	g := openGuide(t, "docs/outcomes.md", filepath.Join(repository(t), "examples", "intents"))
	mention(t, "validate", g.do(), "is valid", "1 scorer")
	g.do()
	g.until("models show intent/bot-shop@1", ", champion:")
	g.until(`score intents --key bot-shop -d {"text":"hi"}`, "(intent/bot-shop@1)")
	g.do()
	g.scored(2)
	mention(t, "a person's label", g.do(), "labelled m-2 track-order for scorer intents: corrections/", "the label waits for the answer until")
	g.until("outcomes", "1 of 2 answers right")
	mention(t, "outcomes", g.do(), "track-order", "person", "label", "1 of 2 answers right (50.0 %)")
	g.until("models show intent/bot-shop", "over 2 answers")
	mention(t, "live", g.do(), "Live, version 1 in scorer intents: gate said 0.", "live accuracy 0.500 over 2 answers", "version 1, live")
	g.end()
}
