//go:build cluster

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// idle lists the pods without work, and their memory.
func (w *world) idle(t *testing.T) string {
	t.Helper()
	w.atRest(t)
	var text strings.Builder
	fmt.Fprintln(&text, "AT REST (wanted: gateway, dispatcher, controller, ≤ 60 MB each)")
	for _, p := range w.seen.livePods(isReleasePod) {
		rss, err := residentOf(string(p.Last.UID))
		if err != nil {
			fmt.Fprintf(&text, "%s: %v\n", p.Name, err)
			continue
		}
		fmt.Fprintf(&text, "%s: %.1f MB\n", p.Name, float64(rss)/1e6)
	}
	return text.String()
}

// residentOf returns the memory of tidemill's process in a pod. The process is visible here if the
// node is a sandbox on this machine.
func residentOf(uid string) (int64, error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	for _, file := range groups {
		in, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(in), uid) && !strings.Contains(string(in), strings.ReplaceAll(uid, "-", "_")) {
			continue // the process has ended meanwhile, or belongs to another pod
		}
		dir := filepath.Dir(file)
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(line), "tidemill") {
			continue
		}
		return resident(dir)
	}
	return 0, fmt.Errorf("its process is not on this machine")
}

func resident(dir string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("%s says no VmRSS", dir)
}
