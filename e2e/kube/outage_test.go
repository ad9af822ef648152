//go:build cluster

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tidemill.dev"
)

// The API server does not answer for a while. Requests of that time are executed once, later.
func TestTheAPIServerIsAway(t *testing.T) {
	w := cluster(t)
	w.waitAllReady(t)
	before := w.alwaysThere()
	bots := keys("away", 6)
	w.mustPublish(t, tidemill.TypeBotCreated, bots[0], "")
	w.succeeds(t, "intent", bots[0]) // wakes train
	resume := w.pauseServer(t)
	for _, bot := range bots[1:] {
		w.mustPublish(t, tidemill.TypeBotCreated, bot, "")
	}
	// The outage lasts for a number of events that are published and read meanwhile.
	for i := range awayFor {
		w.mustPublish(t, "nobody-listens", fmt.Sprint("away-clock-", i), "")
		w.journal.waitForEvent(t, "what is said meanwhile", isEvent("nobody-listens", fmt.Sprint("away-clock-", i)))
	}
	resume()
	w.journal.waitUntil(t, "each bot's model", func() (string, bool) {
		n := len(w.journal.events(oneOf(tidemill.TypeModelPromoted, bots)))
		return fmt.Sprintf("%d of %d are promoted", n, len(bots)), n >= len(bots)
	})
	w.onlyOneJob(t, bots, "intent")
	w.noLetters(t, bots)
	w.waitAllReady(t)
	after := w.alwaysThere()
	for id, name := range before {
		if _, still := after[id]; !still {
			t.Errorf("%s was started anew", name)
		}
	}
}

// awayFor is the number of events that are published and read back, one after another, during the
// outage.
const awayFor = 300

// pauseServer stops the API server like a machine that hangs: its connections stay open, without
// answers.
func (w *world) pauseServer(t *testing.T) (resume func()) {
	t.Helper()
	if !w.sandbox.Own() {
		t.Skip("the API server is not ours to stop")
	}
	pid := w.serverProcess(t)
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	resume = sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Errorf("let the API server go on: %v", err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// serverProcess finds the API server by its files, which belong only to this sandbox.
func (w *world) serverProcess(t *testing.T) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended meanwhile
		}
		args := strings.Split(string(line), "\x00")
		if slices.Contains(args, "kube-apiserver") && strings.Contains(string(line), "/"+w.name+"/etc/") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(t, err)
			return pid
		}
	}
	t.Fatal("the API server's process is not to be found")
	return 0
}
