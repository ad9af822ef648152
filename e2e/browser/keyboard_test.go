//go:build real

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// reach presses Tab until an element has the focus. It fails the test if no key leads there.
func (p *page) reach(condition string) {
	p.Helper()
	const most = 250
	for n := range most {
		if eval[bool](p, "(() => { const e = document.activeElement; return Boolean("+condition+"); })()") {
			p.keys += n
			return
		}
		p.press(kb.Tab)
	}
	p.shot("keyboard-stuck")
	p.Fatalf("%d times Tab reach no element with %s", most, condition)
}

// By keyboard alone: find the refused keys of a recipe, see why, roll three others back, see it.
func TestRealKeyboard(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs")
	p.press("g")
	p.press("f")
	p.until("location.pathname === '/' && document.querySelector('main h1')?.textContent === 'Fleet'")
	p.reach("e.matches('main table.fleet a[href*=\"state=refused\"]') && e.closest('tr').textContent.includes('intent')")
	p.press(kb.Enter)
	p.until("location.search.includes('state=refused') && document.querySelector('main table.rows tbody tr')")
	if why := eval[string](p, "document.querySelector('main table.rows tbody tr').textContent"); !strings.Contains(why, "refused") || !strings.Contains(why, "accuracy") {
		t.Errorf("the row of a refused key does not say why: %q", why)
	}
	for range 3 {
		p.press("j")
		p.reach("e.matches('main table.rows input[type=checkbox]') && !e.checked")
		p.press(" ")
	}
	if n := eval[int](p, "document.querySelectorAll('main table.rows input:checked').length"); n != 3 {
		t.Errorf("%d keys are selected", n)
	}
	champions := eval[[]string](p, "[...document.querySelectorAll('main table.rows input:checked')].map((e) => e.closest('tr').querySelector('a[href^=\"/ui/model\"]').textContent)")
	p.reach("e.matches('button[value=rollback]')")
	p.press(kb.Enter)
	p.until("document.querySelector('main h1')?.textContent.match(/roll/i)")
	p.shot("act-rollback")
	p.reach("e.matches('main textarea, main input[name=reason]')")
	p.press("the newest answers are worse")
	p.reach("e.matches('main button.primary, main button.danger, main form[method=post] button')")
	p.press(kb.Enter)
	p.until("document.querySelector('main').textContent.match(/rolled back|undo/i)")
	p.shot("act-rollback-done")
	t.Logf("%d times Tab in all", p.keys)
	for _, was := range champions {
		model, version, _ := strings.Cut(was, "@")
		is := eval[int](p, "fetch('/api/v1/model?model="+model+"').then((r) => r.json()).then((m) => m.champion)")
		if fmt.Sprint(is) == version {
			t.Errorf("the champion of %s is still version %s", model, version)
		}
	}
	p.press("g")
	p.press("f")
	p.until("document.querySelector('main h1')?.textContent === 'Fleet' && document.querySelector('main tm-strip')")
	p.checkQuiet()
}
