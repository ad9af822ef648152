package realservers

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the child when the test dies, be it by a
// panic or SIGKILL.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
