//go:build unix

package local

import (
	"os/exec"
	"syscall"
)

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) } // an error means that the process has ended

// newSession starts the guard in its own session, so that a signal to our session does not end it.
func newSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
