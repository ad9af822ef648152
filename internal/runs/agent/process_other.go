//go:build !unix

package agent

import (
	"os"
	"os/exec"
)

// Without process groups, only the command itself is killed.

func ownGroup(*exec.Cmd) {}

func askGroup(pid int) { killGroup(pid) }

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // it may have ended
	}
}

func signalOf(*exec.ExitError) string { return "" }

func isScarce(error) bool    { return false }
func isNoProgram(error) bool { return false }
func isTooLong(error) bool   { return false }

func ownPeak() int64         { return 0 }
func peakOf(*exec.Cmd) int64 { return 0 }

const nonBlocking = 0
