//go:build cluster

package kube

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the CPU time of all processes that the test has started, by program.
type cpuTime map[string]time.Duration

// tick is the unit in which Linux reports CPU time on all machines.
const tick = 10 * time.Millisecond

// spentSoFar reads CPU times if the cluster is a sandbox on this machine. The time of a process
// that has ended is lost.
func spentSoFar() cpuTime {
	all, parents := cpuTime{}, map[int]int{}
	used, what := map[int]time.Duration{}, map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		line, wrong := os.ReadFile(filepath.Join(dir, "cmdline"))
		_, behind, found := strings.Cut(string(stat), ") ") // names may have spaces
		if f := strings.Fields(behind); err == nil && wrong == nil && found && len(f) > 12 {
			parents[pid], _ = strconv.Atoi(f[1])
			user, _ := strconv.Atoi(f[11])
			system, _ := strconv.Atoi(f[12])
			used[pid], what[pid] = time.Duration(user+system)*tick, calledIn(line)
		}
	}
	for pid, d := range used {
		for at := pid; at > 1; at = parents[at] {
			if at == os.Getpid() {
				all[what[pid]] += d
				break
			}
		}
	}
	return all
}

// calledIn returns the program of a command line, and its subcommand.
func calledIn(cmdline []byte) string {
	words := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	name := filepath.Base(words[0])
	for _, word := range words[1:] {
		if strings.HasPrefix(word, "-") || strings.ContainsAny(word, "/.=") {
			break
		}
		name += " " + word
	}
	return name
}

// since returns the CPU times since an earlier reading, divided by times, largest first.
func (s cpuTime) since(earlier cpuTime, times int) string {
	each := cpuTime{}
	for name, d := range s {
		if d -= earlier[name]; d >= tick {
			each[name] = d / time.Duration(times)
		}
	}
	var sum time.Duration
	var out strings.Builder
	for _, name := range slices.SortedFunc(maps.Keys(each), func(a, b string) int { return cmp.Compare(each[b], each[a]) }) {
		sum += each[name]
		fmt.Fprintf(&out, "%8v  %s\n", each[name].Round(10*time.Microsecond), name)
	}
	return fmt.Sprintf("PROCESSOR TIME EACH: %v\n%s", sum.Round(10*time.Microsecond), out.String())
}
