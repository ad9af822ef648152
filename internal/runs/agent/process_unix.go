//go:build unix

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup makes the child the leader of a process group, so that the child's children can be
// killed with it.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// askGroup sends SIGTERM to a process group.
func askGroup(pid int) { signalGroup(pid, syscall.SIGTERM) }

// killGroup sends SIGKILL to a process group.
func killGroup(pid int) { signalGroup(pid, syscall.SIGKILL) }

// signalGroup ignores the error for a group without processes.
func signalGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

// signalOf returns the name of the signal that ended a process; empty if no signal did.
func signalOf(exit *exec.ExitError) string {
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return ""
	}
	return cmp.Or(unix.SignalName(status.Signal()), fmt.Sprintf("signal %d", status.Signal()))
}

// isScarce reports whether a process could not start only because a resource was scarce, so that
// another try may succeed.
func isScarce(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ETXTBSY) ||
		errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// isNoProgram reports whether the system cannot run a file.
func isNoProgram(err error) bool { return errors.Is(err, syscall.ENOEXEC) }

// isTooLong reports whether arguments and variables are too large together.
func isTooLong(err error) bool { return errors.Is(err, syscall.E2BIG) }

// ownPeak returns the peak memory of this process.
func ownPeak() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return int64(u.Maxrss) * rssUnit
}

// peakOf returns the peak memory of a process, or of a child for which it waited.
func peakOf(cmd *exec.Cmd) int64 {
	u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return int64(u.Maxrss) * rssUnit
}

// nonBlocking lets a pipe be opened without waiting for a writer.
const nonBlocking = syscall.O_NONBLOCK
