package task

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Process is the use of a running process, whatever program it is.
type Process struct {
	CPU      time.Duration // user and system, since it began
	Resident uint64        // most resident bytes since it began
}

// userTick is the unit of times in /proc: Linux reports them to programs in hundredths of a second.
const userTick = 10 * time.Millisecond

// ReadProcess reads the use of a process from /proc.
func ReadProcess(pid int) (p Process, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, fmt.Errorf("read the CPU time of a process: %w; this works on Linux alone", err)
	}
	// The second field is the program's name in brackets, which may contain blanks.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const user, system = 11, 12
	if len(fields) <= system {
		return p, fmt.Errorf("read the CPU time of process %d: its stat %q is too short", pid, stat)
	}
	for _, at := range []int{user, system} {
		ticks, err := strconv.ParseInt(fields[at], 10, 64)
		if err != nil {
			return p, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		p.CPU += time.Duration(ticks) * userTick
	}
	p.Resident, err = mostResident(pid)
	return p, err
}

func mostResident(pid int) (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(size), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("read the memory of process %d: its status has no VmHWM", pid)
}
