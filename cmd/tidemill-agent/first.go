//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// envFirst tells the agent that its parent is the first process of the container
// and takes in orphans, so that all others there are the command's.
const envFirst = "TIDEMILL_AGENT_FIRST"

// ended is how the agent's own process has ended.
type ended struct{ code int }

func (e *ended) Error() string { return fmt.Sprintf("the agent exited with %d", e.code) }

// beFirst is the first process of a container: it starts the agent as another,
// passes on the word to leave, and buries orphans. Were it the agent itself, it
// could not tell an orphan's end from that of a command it waits for. When it
// ends the kernel ends whatever is left.
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
			_ = cmd.Process.Signal(s) // one that has ended need not leave
		}
	}()
	if code := bury(cmd.Process.Pid); code != exitTold {
		return &ended{code}
	}
	return nil
}

// bury waits for every child, its own and those that others left, until the one
// ends that counts.
func bury(pid int) (code int) {
	for {
		var status syscall.WaitStatus
		gone, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return exitUntold // there is no child any more
		case gone != pid:
		case status.Signaled():
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}

// killOthers ends every process of the container but its first and this one.
func killOthers() error {
	if err := syscall.Kill(-1, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("end what is left of the command: %w", err)
	}
	return nil
}
