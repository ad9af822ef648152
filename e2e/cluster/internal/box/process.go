//go:build linux

package box

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// startOf returns when a process began, in ticks since the machine's start. Together with its
// number it identifies a process for ever.
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", fmt.Errorf("look at process %d: %w", pid, err)
	}
	return startIn(stat)
}

// startIn parses a line of /proc/PID/stat. The name in its brackets may contain brackets and
// spaces.
func startIn(stat []byte) (string, error) {
	_, rest, found := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") "))
	fields := bytes.Fields(rest)
	const start = 22 - 3 // the 22nd field; the first two are before the rest
	if !found || len(fields) <= start {
		return "", fmt.Errorf("read a process's start from %q", stat)
	}
	return string(fields[start]), nil
}

// patience is how long the kernel may take to remove killed processes, which is long on a machine
// with much other work.
const patience = 2 * time.Minute

// gone waits for the end of a process that is not a child.
func gone(pid int, started string, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		now, err := startOf(pid)
		if err != nil || now != started {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for process %d of the sandbox to end: it still runs after %s", pid, patience)
		}
	}
}
