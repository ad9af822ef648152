package main

import (
	"fmt"
	"syscall"
)

// hide keeps what this process knows from others of its user: the command runs as
// the same one, and could else read the attempt's token out of our environment or
// our memory, and with it ask for the next attempt in our name. Only who may trace
// every process is not kept from it, which no pod of a run is. A program that is
// begun anew is not hidden until it says so itself.
func hide() error {
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); err != 0 {
		return fmt.Errorf("hide the attempt's token from its command: %w", err)
	}
	return nil
}
