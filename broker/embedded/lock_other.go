//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package embedded

import (
	"errors"
	"os"
)

func tryLock(*os.File) error {
	return errors.New("this system has no flock; run in WSL, a container or a virtual machine")
}
