//go:build !unix

package local

import (
	"os"
	"os/exec"
)

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // it may have ended
	}
}

func apart(*exec.Cmd) {}
