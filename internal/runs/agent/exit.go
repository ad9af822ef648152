package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"tidemill.dev"
)

// ending is the end of the command.
type ending struct {
	exit   int // -1 if a signal ended it
	signal string
	err    error // nil for a success
}

// endingOf returns the ending for the error of Wait.
func endingOf(err error, p *tidemill.Plan) ending { // p is nil if no engine ran the command
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ending{}
	case !errors.As(err, &exit):
		return ending{exit: -1, err: fmt.Errorf("wait for the command: %w", err)}
	}
	if name := signalOf(exit); name != "" {
		return killedBy(name)
	}
	return exitedWith(exit.ExitCode(), p)
}

func killedBy(signal string) ending {
	return ending{exit: -1, signal: signal, err: errors.New("killed by " + signal + why(signal))}
}

func why(signal string) string {
	switch signal {
	case "SIGKILL":
		return " (out of memory?)"
	case "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT":
		return " (a fault in native code)"
	}
	return ""
}

// exitedWith returns the ending for an exit status. Container engines use some statuses for their
// own errors.
func exitedWith(code int, p *tidemill.Plan) ending {
	e := ending{exit: code, err: fmt.Errorf("exit status %d", code)}
	if p == nil {
		return e
	}
	switch {
	case code == 125:
		e.err = fmt.Errorf("the container of %s was not started: the log has the reason", p.Image)
	case code == 126, code == 127:
		e.err = permanent("the image %s has no command that could be run as %q (exit status %d)", p.Image, p.Command, code)
	case code == 137:
		return killedBy("SIGKILL")
	case code == 139:
		return killedBy("SIGSEGV")
	case code == 143:
		return killedBy("SIGTERM")
	}
	return e
}

// ooms are the kernel's counts of a container's memory.
type ooms struct {
	kills int64 // number of its processes that were killed for memory
	limit int64 // bytes; 0 if there is none, or it is unknown
}

// readOOMs reads the counts from control groups of version 1 or 2. A count that cannot be read is
// 0.
func readOOMs(root string) ooms {
	return ooms{
		kills: max(counted(root, "memory.events", "oom_kill"), counted(root, "memory/memory.oom_control", "oom_kill")),
		limit: max(bound(root, "memory.max"), bound(root, "memory/memory.limit_in_bytes")),
	}
}

// counted returns the number after a name in a file.
func counted(root, file, name string) int64 {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) == 2 && string(fields[0]) == name {
			n, _ := strconv.ParseInt(string(fields[1]), 10, 64) // 0 if not a number
			return n
		}
	}
	return 0
}

func bound(root, file string) int64 {
	const none = 1 << 60 // about the number in the file if there is no limit
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || n >= none {
		return 0
	}
	return n
}

const killedByShell = 128 + 9 // exit status of a shell whose command was killed

// explain returns the error of a failed command, and whether the kernel killed it for memory.
func (before ooms) explain(end ending, now ooms, limit int64) error {
	if now.kills <= before.kills {
		return end.err
	}
	if limit <= 0 {
		limit = now.limit
	}
	why := "killed for memory"
	if limit > 0 {
		why += fmt.Sprintf(": the limit is %s (run.memory)", inUnits(limit))
	}
	if end.signal == "SIGKILL" || end.exit == killedByShell {
		return fmt.Errorf("%s", why)
	}
	return fmt.Errorf("%w; a process of it was %s", end.err, why)
}

// inUnits formats a number of bytes as a config does.
func inUnits(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
