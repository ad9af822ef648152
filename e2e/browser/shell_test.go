//go:build real

package main

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// Keys open pages, find, help and go through rows.
func TestRealKeys(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs")
	p.press("gx")
	p.until("location.pathname === '/ui/dead-letters' && document.activeElement.tagName === 'H1'")
	p.press("jjj")
	p.until("document.querySelectorAll('tr[data-current]').length === 1 && document.querySelectorAll('main table.rows > tbody > tr')[2].hasAttribute('data-current')")
	p.press(kb.Enter)
	p.until("location.search.includes('reason=')")
	p.press("?")
	p.until("document.querySelector('dialog.help[open]')")
	p.press(kb.Escape)
	p.until("document.querySelector('dialog') === null")
	p.press("/")
	p.until("document.activeElement.type === 'search'")
	eval[bool](p, "document.activeElement.value = ''; true") // the protocol types the / although the page prevents it
	p.press("tell-crm" + kb.Enter)
	p.until("location.pathname === '/ui/triggers/tell-crm'")
	eval[bool](p, "history.back(); true")
	p.until("location.pathname === '/ui/dead-letters' && document.querySelector('form.filter input[name=trigger]')")
	eval[bool](p, "document.querySelector('form.filter input[name=trigger]').focus(); true")
	p.press("invoices" + kb.Enter)
	p.until("location.search.includes('trigger=') && document.querySelector('form.filter input[name=trigger]').value.includes('invoices')")
	p.checkQuiet()
}

// A command is checked, done and undone without loading the page.
func TestRealAct(t *testing.T) {
	p := newPage(t)
	p.open("/ui/act/pause-pool?pool=cpu")
	eval[bool](p, "window.same = true; document.querySelector('button.primary').click(); true")
	p.until("document.querySelector('.result')?.textContent.includes('It is paused.')")
	eval[bool](p, "document.querySelector('main a.button').click(); true")
	p.until("location.pathname === '/ui/act/resume-pool' && document.querySelector('button.primary')")
	eval[bool](p, "document.querySelector('button.primary').click(); true")
	p.until("document.querySelector('.result')?.textContent.includes('It is resumed.') && window.same")
	p.checkQuiet()
}

// The log of a run that is under way arrives.
func TestRealLogFollows(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs?state=running")
	eval[bool](p, "document.querySelector('main tbody a[href^=\"/ui/runs/\"]').click(); true")
	p.until("document.querySelector('pre.log')?.textContent.includes('epoch')")
	p.checkQuiet()
}
