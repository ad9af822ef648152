//go:build real

package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"tidemill.dev/broker/brokertest/realservers"
)

const (
	maxHeap  = 60_000_000 // bytes of JavaScript of a page
	maxBytes = 60_000     // bytes of JavaScript and CSS in all, gzipped
)

// assets is the folder with the scripts and styles of the dashboard.
var assets = filepath.Join("..", "..", "internal", "gateway", "dashboard", "assets")

func quoted(text string) string {
	q, _ := json.Marshal(text) // a text cannot fail
	return string(q)
}

// All scripts and styles are small.
func TestRealBytes(t *testing.T) {
	files, err := os.ReadDir(assets)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); ext != ".js" && ext != ".css" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(assets, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(text)
		w.Close()
		total += b.Len()
	}
	t.Logf("JavaScript and CSS in all: %d bytes, gzipped", total)
	if total > maxBytes || total == 0 {
		t.Errorf("JavaScript and CSS have %d bytes, gzipped, and may have %d", total, maxBytes)
	}
}

// The types of all scripts are right.
func TestRealTypes(t *testing.T) {
	modules, err := realservers.BrowserModules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(assets, "*.js"))
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	args := append([]string{"--noEmit", "--allowJs", "--checkJs", "--strict", "--target", "es2024", "--module", "esnext", "--moduleResolution", "bundler",
		"--lib", "es2024,dom,dom.iterable,dom.asynciterable"}, files...)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(modules, ".bin", "tsc"), args...).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// changes makes changes until the function that it returns is called: run requests for keys one after
// another, each of which changes a run and a key. The function returns their number.
func changes(t *testing.T, perSecond int) (stop func() int) {
	t.Helper()
	return theInstall.publish(t, perSecond, func(n int) string {
		key := fmt.Sprintf("bot-%05d", (100+n)%20_000)
		return fmt.Sprintf(`"type":"new-data","subject":%q,"dataset":"bots/%s","data":{}`, key, key)
	})
}

// chat publishes events that the scorer scores, until the function that it returns is called.
func (i *install) chat(t *testing.T) (stop func() int) {
	t.Helper()
	return i.publish(t, 20, func(n int) string {
		return fmt.Sprintf(`"type":"message","subject":"bot-%05d","data":{"x":%g}`, 40+n%20, float64(n%10)/10)
	})
}

// publish publishes events whose fields are given by their numbers.
func (i *install) publish(t *testing.T, perSecond int, fields func(n int) string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		sent := 0
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- sent
				return
			case <-tick.C:
			}
			var all []string
			for range perSecond / 10 {
				all = append(all, fmt.Sprintf(`{"specversion":"1.0","id":"%d-%d","source":"/browser",%s}`, time.Now().UnixNano(), sent, fields(sent)))
				sent++
			}
			status, text, err := i.ask(ctx, http.MethodPost, "/events", "["+strings.Join(all, ",")+"]")
			if ctx.Err() == nil && (err != nil || status >= http.StatusMultipleChoices) {
				t.Errorf("publish events: %d %s, %v", status, short(text), err)
			}
		}
	}()
	return func() int { cancel(); return <-done }
}

// While 100 changes a second come in, the page stays small and answers keys. The figures of time are
// logged, because a busy machine would fail a test of them.
func TestRealChanges(t *testing.T) {
	p := newPage(t)
	p.open("/?recipe=intent")
	p.until("document.querySelector('main table.rows tr')")
	before, tasks := p.heap(), len(p.longTasks())
	stop := changes(t, 100)
	p.until("(window.__news ??= (() => { const n = {count: 0}; new MutationObserver(() => n.count++).observe(document.querySelector('main'), {subtree: true, childList: true, characterData: true}); return n; })()).count >= 4")
	p.press("j")
	key := p.until("document.querySelector('main tr[data-current]')")
	sent := stop()
	n, heap := p.nodes(), p.heap()
	t.Logf("%d changes: key to paint %s, %d nodes, heap %.1f MB before and %.1f MB after, tasks over 50 ms: %q", sent, key, n, float64(before)/1e6, float64(heap)/1e6, p.longTasks()[tasks:])
	if n > maxNodes || heap > maxHeap {
		t.Errorf("after %d changes the page has %d nodes and %d bytes of heap", sent, n, heap)
	}
	p.checkQuiet()
}

// The heap stays flat over as many refreshes as an hour of changes makes for one region: one a second.
func TestRealHour(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs")
	p.until("document.querySelector('main table.rows tr')")
	refresh := func(times int) {
		eval[bool](p, fmt.Sprintf(`(async () => {
			const { morph } = await import(document.querySelector("script[type=module]").src.replace(/app\.js/, "morph.js"));
			const region = document.querySelector("[data-region=runs]");
			const text = await (await fetch(location, { headers: { "Tidemill-Region": "runs" } })).text();
			for (let i = 0; i < %d; i++) {
				const news = text.replaceAll(/\d+ (s|min) ago/g, i + " s ago").replaceAll('data-key="', 'data-key="' + i %% 7);
				morph(region, new DOMParser().parseFromString(news, "text/html").body.firstElementChild);
				if (i %% 50 === 0) await new Promise((done) => setTimeout(done));
			}
			return true;
		})()`, times))
	}
	refresh(100)
	before, nodes := p.heap(), p.nodes()
	for range 12 { // each has a time limit
		refresh(300)
	}
	after, refreshed := p.heap(), p.nodes()
	p.open("/ui/runs") // runs of other tests may have come since
	p.until("document.querySelector('main table.rows tr')")
	nodes = max(nodes, p.nodes())
	t.Logf("heap %.2f MB, and %.2f MB after 3,600 refreshes; %d nodes, and %d on a new page", float64(before)/1e6, float64(after)/1e6, refreshed, nodes)
	if after > before+1_000_000 || refreshed > nodes+50 {
		t.Errorf("the page grows: heap from %d to %d, nodes from %d to %d", before, after, nodes, refreshed)
	}
}

// The time of a filter and of a sort of all keys, from the key to the painted table, and of the first
// paint of the warm fleet.
func TestRealFleetTimes(t *testing.T) {
	p := newPage(t)
	for range 3 {
		p.open("/")
		first, largest := p.paints()
		t.Logf("fleet: first paint after %s, largest after %s", first.Round(time.Millisecond), largest.Round(time.Millisecond))
	}
	p.open("/?recipe=intent")
	var took []time.Duration
	for _, key := range []string{"bot-00042", "bot-01234", "bot-19999"} {
		eval[bool](p, "(() => { const f = document.querySelector('main input[name=search]'); f.value = ''; f.focus(); return true; })()")
		p.press(key + kb.Enter)
		took = append(took, p.until(`document.querySelectorAll("main table.rows tbody tr").length === 1 && document.querySelector("main table.rows tbody").textContent.includes(`+quoted(key)+`)`))
	}
	t.Logf("from Enter to the painted table of filtered keys: %v", took)
	p.open("/?recipe=intent")
	took = nil
	for i := range 3 {
		to := eval[string](p, fmt.Sprintf("(() => { const a = document.querySelectorAll('main table.rows thead th a')[%d]; a.focus(); return a.search; })()", i))
		p.press(kb.Enter)
		took = append(took, p.until("location.search === "+quoted(to)+" && document.querySelector('main table.rows tbody tr')"))
	}
	t.Logf("from Enter to the painted table of sorted keys: %v", took)
	p.checkQuiet()
}

const (
	tabs    = 50   // viewers in TestRealTabs
	maxTabs = 0.05 // share of a core that they may cost
)

// The cost of 50 open tabs of Fleet to the gateway while 100 changes a second come in. The tabs are connections that do what
// a tab does, because 50 real ones would need the whole machine.
func TestRealTabs(t *testing.T) {
	if theInstall.cmd == nil {
		t.Skip("the gateway is not ours, so its processor time is unknown")
	}
	defer changes(t, 100)()
	const warm = 5 * time.Second
	theInstall.processorTime(t, warm)
	alone := theInstall.leastTime(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, tabs)
	for range tabs {
		go func() { ended <- (&tab{versions: map[string]any{}}).watch(ctx) }()
	}
	theInstall.processorTime(t, warm) // the first fetch of all regions
	with := theInstall.leastTime(t)
	cancel()
	for range tabs {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a tab ended: %v", err)
		}
	}
	theInstall.processorTime(t, time.Second)
	after := theInstall.leastTime(t) // more runs wait than before, which costs the embedded Redis more
	t.Logf("with 100 changes a second tidemill takes %.1f %% of a core, %.1f %% with %d tabs, and %.1f %% after them; the tabs may cost %.0f %%",
		100*alone, 100*with, tabs, 100*after, 100*maxTabs) // a busy machine adds more than the tabs
}

// tab follows what changes, as a tab of Fleet does.
type tab struct {
	versions map[string]any
	fetched  time.Time
}

func (o *tab) watch(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, theInstall.url+"/api/v1/live?topics=fleet", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("live: %s", answer.Status)
	}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		text, isData := strings.CutPrefix(lines.Text(), "data: ")
		if !isData {
			continue
		}
		if err := json.Unmarshal([]byte(text), &o.versions); err != nil {
			return err
		}
		if time.Since(o.fetched) < time.Second { // a tab fetches a region at most once a second
			continue
		}
		o.fetched = time.Now()
		known, err := json.Marshal(o.versions)
		if err != nil {
			return err
		}
		for _, region := range []string{"recipes", "strip", "keys", "fresh"} {
			if err := fetchRegion(ctx, "/?recipe=intent", region, string(known)); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func fetchRegion(ctx context.Context, path, region, versions string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, theInstall.url+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Tidemill-Region", region)
	r.Header.Set("Tidemill-Versions", versions)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// processorTime returns the share of a core that tidemill uses during a time.
func (i *install) processorTime(t *testing.T, during time.Duration) float64 {
	t.Helper()
	before, began := i.ticks(t), time.Now()
	<-time.After(during)
	const ticksPerSecond = 100 // of Linux, on every machine
	return float64(i.ticks(t)-before) / ticksPerSecond / time.Since(began).Seconds()
}

// leastTime returns the least of three measurements, because a collection of garbage uses processors that are idle.
func (i *install) leastTime(t *testing.T) float64 {
	t.Helper()
	const times, during = 3, 4 * time.Second
	least := i.processorTime(t, during)
	for range times - 1 {
		least = min(least, i.processorTime(t, during))
	}
	return least
}

func (i *install) ticks(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", i.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	total := 0
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	return total
}
