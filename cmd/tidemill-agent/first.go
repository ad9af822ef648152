//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// envFirst says that the agent's parent is the first process of the container and adopts orphans.
// So all other processes are the command's.
const envFirst = "TIDEMILL_AGENT_FIRST"

// exitStatus is the exit status of the agent's own process.
type exitStatus struct{ code int }

func (e *exitStatus) Error() string { return fmt.Sprintf("the agent exited with %d", e.code) }

// beFirst runs as the first process of a container: it starts the agent as a second process, passes
// on SIGTERM, and reaps orphans. The agent cannot be the first process itself, because it could not
// tell the end of an orphan from the end of its command. When the first process ends, the kernel
// kills all other processes.
func beFirst(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	asked := make(chan os.Signal, 4)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), envFirst+"=yes")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	go func() {
		for s := range asked {
			_ = cmd.Process.Signal(s) // an error means that the agent has ended
		}
	}()
	if code := reapUntilExit(cmd.Process.Pid); code != exitTold {
		return &exitStatus{code}
	}
	return nil
}

// reapUntilExit reaps the agent and adopted orphans until the agent ends.
func reapUntilExit(pid int) (code int) {
	for {
		var status syscall.WaitStatus
		gone, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return exitUntold // no child is left
		case gone != pid:
		case status.Signaled():
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}

// killOthers kills every process of the container except the first and this one.
func killOthers() error {
	if err := syscall.Kill(-1, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("end the rest of the command: %w", err)
	}
	return nil
}
