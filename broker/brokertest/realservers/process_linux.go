package realservers

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the kernel kill the child when the test dies, also by a panic or SIGKILL.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
