//go:build !linux

package local

import (
	"os/exec"
)

// prepareChild changes nothing where the kernel does not kill children.
func prepareChild(*exec.Cmd) {}

// sweep finds nothing where processes do not show their variables: groups are
// all there is to go by.
func sweep(string, func(string, int) bool) int { return 0 }
