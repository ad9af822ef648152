package agent

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// LimitsMemory reports whether the agent can measure, and so limit, the memory of a command.
const LimitsMemory = true

const rssUnit = 1 << 10 // unit of ru_maxrss in bytes

// peakNow returns the peak memory of a running process until now.
func peakNow(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(text, []byte("\nVmHWM:"))
	if fields := bytes.Fields(rest); len(fields) > 0 {
		n, _ := strconv.ParseInt(string(fields[0]), 10, 64) // 0 if not a number
		return n << 10
	}
	return 0
}

// groupMemory returns the memory of a process group and of all descendants of its leader, and their
// ids. Pages of files do not count, because the kernel can drop them.
func groupMemory(leader int) (bytes int64, members []int) {
	all := allProcesses()
	page := int64(os.Getpagesize())
	for pid := range all {
		if all.belongs(pid, leader) {
			bytes, members = bytes+anonymousPages(pid)*page, append(members, pid)
		}
	}
	return bytes, members
}

// killAll kills processes. They are stopped first, so that none starts another one meanwhile.
func killAll(pids []int) {
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range pids {
			_ = syscall.Kill(pid, signal) // fails if the process has ended
		}
	}
}

// relatives are the parent and the group of each process.
type relatives map[int]struct{ parent, group int }

func allProcesses() relatives {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	all := make(relatives, len(entries))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // the name before may have spaces
		if err != nil || len(fields) < 3 {
			continue // the process has ended
		}
		of := all[pid]
		of.parent, _ = strconv.Atoi(string(fields[1]))
		of.group, _ = strconv.Atoi(string(fields[2]))
		all[pid] = of
	}
	return all
}

// belongs reports whether a process is in a group, or a descendant of its leader.
func (r relatives) belongs(pid, leader int) bool {
	for range len(r) { // a list that changes while it is read may have a circle
		of, known := r[pid]
		switch {
		case pid == leader || known && of.group == leader:
			return true
		case !known:
			return false
		}
		pid = of.parent
	}
	return false
}

func anonymousPages(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	fields := bytes.Fields(text)
	if err != nil || len(fields) < 3 {
		return 0
	}
	resident, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	shared, _ := strconv.ParseInt(string(fields[2]), 10, 64)
	return max(resident-shared, 0)
}
