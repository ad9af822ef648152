//go:build slow && templates && unix

package cli

import (
	"strings"
	"testing"
)

// openTemplate makes the folder of a template with its packages, and opens its README.
func openTemplate(t *testing.T, name string) *guide {
	t.Helper()
	g := openGuide(t, "internal/cli/templates/"+name+"/trainer/README.md", t.TempDir())
	g.env = withRuntime(t)
	mention(t, "init", g.shell("tidemill init --template "+name), "installing them", "Next:")
	g.do()
	mention(t, "put", g.do(), "committed")
	return g
}

// Two shops get a champion, and the faulty export of the third is refused.
func TestTemplateTabular(t *testing.T) {
	t.Parallel()
	g := openTemplate(t, "tabular")
	g.until("models show fraud/books@1", ", champion:")
	g.until("models show fraud/phones@1", ", champion:")
	g.until("models show fraud/travel@1", ", refused:")
	mention(t, "the refused one", g.do(), "fraud/books", "fraud/phones", "fraud/travel", "metrics.macroF1 >= 0.75")
	g.do()
	g.answered("scores", "model=fraud/books", 6)
	g.answered("scores", "model=fraud/phones", 6)
	mention(t, "try", g.do(), "holds  metrics.macroF1 >= 0.75", "it answers its golden request")
	ok(t, "runs", "start", "fraud", "--key", "books", "--data", g.data)
	mention(t, "the champion is measured", g.until("models show fraud/books@2", ", champion:"), "champion.metrics.macroF1 = ")
	g.end()
}

// Both languages get a champion, which Tidemill's own engine runs.
func TestTemplateText(t *testing.T) {
	t.Parallel()
	g := openTemplate(t, "text")
	for _, key := range []string{"en", "de"} {
		mention(t, key, g.until("models show topic/"+key+"@1", ", champion:"), "with engine go: it answers its golden request")
		g.until(`score topic --key `+key+` -d {"text":"hi"}`, "(topic/"+key+"@1)")
	}
	out := g.do()
	mention(t, "score", out, "delivery", "(topic/en@1)")
	g.answered("topics", "model=topic/en", 4)
	g.answered("topics", "model=topic/de", 4)
	all := g.until("tail topics --from beginning --no-follow")
	for event, label := range map[string]string{"ticket-en-1": "delivery", "ticket-en-2": "account", "ticket-de-1": "delivery", "ticket-de-2": "account", "ticket-de-4": "return"} {
		_, line, _ := strings.Cut(all, "causationid="+event+" ")
		line, _, _ = strings.Cut(line, "\n")
		mention(t, event, line, `{"label":"`+label+`"`)
	}
	mention(t, "try", g.do(), "holds  metrics.accuracy >= 0.8")
	ok(t, "runs", "start", "topic", "--key", "de", "--data", g.data)
	mention(t, "the champion is measured", g.until("models show topic/de@2", ", champion:"), "champion.metrics.accuracy = ")
	g.end()
}
