//go:build unix

package local

import (
	"os/exec"
	"syscall"
)

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) } // it may have ended

// apart gives the guard a session of its own, so that what ends ours does not
// end it.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
