//go:build linux

package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock keeps a name for this process. It ends with the process, whatever
// becomes of it. wait is for those who clear up behind one that is ending.
func lock(name string, wait bool) (*os.File, error) {
	path := filepath.Join(root, name+".lock")
	for {
		if err := os.MkdirAll(root, 0o755); err != nil {
			return nil, fmt.Errorf("make the folder of sandboxes: %w", err)
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, os.ErrNotExist) {
			continue // who ended last has just removed the folder
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
		file.Close() // it was removed while we waited: a lock on it holds nobody off
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

// unlock gives a name back and takes its file away, and with the last the
// folder.
func unlock(file *os.File) error {
	err := errors.Join(os.Remove(file.Name()), file.Close())
	os.Remove(root) // it stays while anybody has something in it
	return err
}
