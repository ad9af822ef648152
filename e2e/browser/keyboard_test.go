//go:build real

package main

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// mostTabs is the number of times that a person should have to press Tab to get from one thing to the next.
const mostTabs = 30

// reach presses Tab until an element has the focus. It fails the test if that takes too many keys.
func (p *page) reach(condition string) {
	p.Helper()
	for n := range mostTabs + 1 {
		if eval[bool](p, "(() => { const e = document.activeElement; return Boolean("+condition+"); })()") {
			p.keys += n
			return
		}
		p.press(kb.Tab)
	}
	p.shot("keyboard-stuck")
	p.Fatalf("%d times Tab reach no element with %s", mostTabs, condition)
}

// By keyboard alone: find the refused keys of a recipe, see why, compare one with its champion, roll three back, and see it
// on the strip.
func TestRealKeyboard(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs")
	p.press("gf")
	p.until("location.pathname === '/' && document.querySelector('main h1')?.textContent === 'Fleet'")
	p.reach("e.matches('main table.fleet a[href*=\"state=refused\"]') && e.closest('tr').textContent.includes('intent')")
	p.press(kb.Enter)
	p.until("location.search.includes('state=refused') && document.querySelector('main table.rows tbody tr')")
	refused := eval[string](p, "location.search")
	if why := eval[string](p, "document.querySelector('main table.rows tbody tr').textContent"); !strings.Contains(why, "refused") || !strings.Contains(why, "accuracy is") {
		t.Errorf("the row of a refused key does not say why: %q", why)
	}

	p.press("jj")
	p.reach("e.matches('tr[data-current] a[href*=\"version=\"]')")
	p.press(kb.Enter)
	p.until("document.querySelector('[data-region=judged] h2')?.textContent.match(/Version \\d+ against version \\d+/)")
	if text := eval[string](p, "document.querySelector('[data-region=judged]').innerText"); !strings.Contains(text, "failed") || !strings.Contains(text, "Difference") {
		t.Errorf("the page of the version does not compare it with the champion: %s", text)
	}
	p.reach("e.matches('select[name=version]')")

	eval[bool](p, "history.back(); true")
	p.until("location.search === " + quoted(refused) + " && document.querySelector('main h1')?.textContent === 'Fleet'")
	for range 3 {
		p.press("jx")
	}
	rolled := selectedRows(p)
	if len(rolled) != 3 {
		t.Errorf("%d keys are selected", len(rolled))
	}
	p.press("b")
	p.reach("e.matches('button[value=rollback]')")
	p.press(kb.Enter)
	p.until("document.querySelector('main h1')?.textContent.match(/roll/i)")
	p.shot("act-rollback")
	p.reach("e.matches('main [name=reason]')")
	p.press("the newest answers are worse")
	p.reach("e.matches('main button.primary, main button.danger, main form[method=post] button')")
	p.press(kb.Enter)
	p.until("document.querySelector('main .result')?.textContent.includes('3 of 3')")
	p.shot("act-rollback-done")

	p.press("gf")
	p.until("document.querySelector('main h1')?.textContent === 'Fleet' && document.querySelector('main tm-strip')")
	p.reach("e.matches('#strip')")
	for _, row := range rolled {
		shown := ""
		for cell := 0; cell < mostCells && !strings.HasPrefix(shown, row.key+" "); cell++ {
			was := quoted(shown)
			p.press(kb.ArrowRight)
			p.until("document.querySelector('tm-strip').textContent !== " + was)
			shown = eval[string](p, "document.querySelector('tm-strip').textContent")
		}
		if !strings.HasPrefix(shown, row.key+" ") || strings.HasSuffix(shown, "champion "+row.champion) {
			t.Errorf("the strip does not show that %s was rolled back from version %s: %q", row.key, row.champion, shown)
		}
	}
	t.Logf("%d times Tab in all", p.keys)
	p.checkQuiet()
}

// By keyboard alone: pause a rollout after its dry run, and undo that.
func TestRealRolloutIsPaused(t *testing.T) {
	p := newPage(t)
	p.open("/")
	p.press("go")
	p.until("document.querySelector('main h1')?.textContent === 'Rollouts' && document.querySelector('.steps li[aria-current]')")
	p.reach("e.matches('main a[href*=\"pause-rollout\"]')")
	p.press(kb.Enter)
	p.until("document.querySelector('main h1')?.textContent === 'Pause a rollout' && document.querySelector('.dry')?.textContent.includes('churn/1 stays at 50 %')")
	p.reach("e.matches('main [name=reason]')")
	p.press("a holiday")
	p.press(kb.Enter) // shows the dry run again, with the reason in the command
	p.until("document.querySelector('tm-copy code')?.textContent.includes(\"--reason 'a holiday'\")")
	p.reach("e.matches('main button.primary')")
	p.press(kb.Enter)
	p.until("document.querySelector('main .result')?.textContent.includes('churn/1 stays at 50 %')")
	p.reach("e.matches('main a[href*=\"resume-rollout\"]')")
	p.press(kb.Enter)
	p.until("document.querySelector('main h1')?.textContent === 'Resume a rollout'")
	p.reach("e.matches('main button.primary')")
	p.press(kb.Enter)
	p.until("document.querySelector('main .result')?.textContent.includes('churn/1 continues')")
	p.press("go")
	p.until("document.querySelector('main h1')?.textContent === 'Rollouts' && document.querySelector('main .lead .badge')?.textContent === 'running'")
	p.checkQuiet()
}

// A person gives the truth of an answer from the page of its scorer, and a bad label says why it is refused.
func TestRealLabelIsGiven(t *testing.T) {
	stop := theInstall.chat(t)
	defer func() { stop() }()
	p := newPage(t)
	p.open("/ui/scorers/intents")
	p.until("fetch('/api/v1/streams/scored').then((r) => r.json()).then((s) => s.records > 0)")
	p.open("/ui/scorers/intents")
	p.until("document.querySelector('[data-region=answers] tbody tr')")
	eval[bool](p, "document.querySelector('[data-region=answers] input').focus(); true") // the charts before it have many stops
	p.reach("e.matches('[data-region=answers] a[href*=\"/ui/act/label\"]')")
	p.press(kb.Enter)
	p.until("document.querySelector('main h1')?.textContent === 'Give the true label of an answer'")
	p.reach("e.matches('main [name=truth]')")
	p.press("refund")
	p.reach("e.matches('main button.primary')")
	p.press(kb.Enter)
	p.until("document.querySelector('main .result')?.textContent.includes('The truth is refund')")
	p.shot("act-label-done")
	p.open("/ui/act/label?scorer=intents&event=messages/0/99999999&truth=refund")
	p.reach("e.matches('main button.primary')")
	p.press(kb.Enter)
	p.until("document.querySelector('main .problem')?.textContent.includes('there is no event at messages/0/99999999')")
}

// mostCells is the number of cells among which the rolled back keys are, because the strip is sorted by key.
const mostCells = 400

// rolledRow is a row whose champion is rolled back.
type rolledRow struct{ key, champion string }

func selectedRows(p *page) (all []rolledRow) {
	p.Helper()
	for _, text := range eval[[]string](p, `[...document.querySelectorAll("main table.rows input:checked")].map((e) => e.closest("tr"))
		.map((r) => r.querySelector("td:last-of-type").previousElementSibling.textContent.split("@").at(-1) + " " + r.querySelector("th").querySelector("a").textContent)`) {
		champion, key, _ := strings.Cut(text, " ")
		all = append(all, rolledRow{key, champion})
	}
	return all
}
