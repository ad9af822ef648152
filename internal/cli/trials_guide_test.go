//go:build slow && unix

package cli

import (
	"path/filepath"
	"testing"
)

// A version that knows the customers' slang passes its trial, one that was taught a mistake is refused, and a verdict is
// computed again.
func TestTrialsIsFollowed(t *testing.T) {
	needGo(t)
	t.Parallel()
	g := openGuide(t, "docs/trials.md", filepath.Join(repository(t), "examples", "intents"))
	mention(t, "validate", g.do(), "is valid")
	g.do()
	g.until("models show intent/bot-shop@1", ", champion:")
	g.until(`score intents --key bot-shop -d {"text":"hi"}`, "(intent/bot-shop@1)")
	g.do()
	g.scored(300)
	g.do()
	g.until("trials", "intent/bot-shop@2", "300", "50.0 %", "waits for the first label")
	g.until("status", "1 champion, 1 on trial")
	mention(t, "the running trial", g.do(), "0 of 100", "against version 1", "stream.lead.low > 0", "fails", "no label has come yet", "stream.errors == 0", "holds")
	g.do()
	g.until("models show intent/bot-shop@2", ", champion:")
	g.until(`score intents --key bot-shop -d {"text":"hi"}`, "(intent/bot-shop@2)")
	mention(t, "its verdict", g.do(), "passes its trial", "only it is right")
	g.do()
	g.until("trials", "intent/bot-shop@3", "@2")
	g.do()
	g.until("models show intent/bot-shop@3", ", refused:")
	mention(t, "the refusal", g.do(), "is refused by its trial", "stream.lead.high")
	mention(t, "again", g.do(), "intent/bot-shop@2: passed", "digest", "The same as the recorded verdict.")
	g.end()
}
