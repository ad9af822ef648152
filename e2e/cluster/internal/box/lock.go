//go:build linux

package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock reserves a name for this process. The lock ends with the process, however the process ends.
// Callers that clean up after an ending process use wait.
func lock(name string, wait bool) (*os.File, error) {
	path := filepath.Join(root, name+".lock")
	for {
		if err := os.MkdirAll(root, 0o755); err != nil {
			return nil, fmt.Errorf("make the folder of sandboxes: %w", err)
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, os.ErrNotExist) {
			continue // the last holder has just removed the folder
		}
		if err != nil {
			return nil, fmt.Errorf("lock the sandbox's name: %w", err)
		}
		if err := flock(file, wait); err != nil {
			file.Close()
			return nil, err
		}
		if isAt(file, path) {
			return file, nil
		}
		file.Close() // the file was removed while we waited, so a lock on it is useless
	}
}

func flock(file *os.File, wait bool) error {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		if err := syscall.Flock(int(file.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

func isAt(file *os.File, path string) bool {
	its, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(its, there)
}

// unlock releases a name and removes its file, and the folder if that was the last file.
func unlock(file *os.File) error {
	err := errors.Join(os.Remove(file.Name()), file.Close())
	os.Remove(root) // fails, and the folder stays, while it has other files
	return err
}
