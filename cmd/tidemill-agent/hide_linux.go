package main

import (
	"fmt"
	"syscall"
)

// hideProcess protects the memory and environment of this process. The command runs as the same
// user, and could otherwise read the attempt's token and ask for the next attempt with it. A
// process that may trace all other processes can still read both, but a pod of a run has no such
// process. The protection ends with exec, so a new program must call hideProcess itself.
func hideProcess() error {
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); err != 0 {
		return fmt.Errorf("hide the attempt's token from its command: %w", err)
	}
	return nil
}
