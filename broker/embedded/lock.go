package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

var errHeld = errors.New("held by another process")

// dirLock keeps a second process off a data folder. The kernel holds it for
// the open file, so it ends with the process, however that ends; the pid inside
// is for people.
type dirLock struct{ f *os.File }

// lockDir makes the folder if it is missing and locks it. No folder, no lock.
func lockDir(dir string) (*dirLock, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data folder: %w", err)
	}
	if err := tryLock(f); err != nil {
		err = explainLock(dir, f, err)
		return nil, errors.Join(err, f.Close())
	}
	if err := writePID(f); err != nil {
		return nil, errors.Join(fmt.Errorf("write the pid into %s: %w", f.Name(), err), f.Close())
	}
	return &dirLock{f: f}, nil
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func explainLock(dir string, f *os.File, err error) error {
	if !errors.Is(err, errHeld) {
		return fmt.Errorf("lock the data folder %s: %w", dir, err)
	}
	holder := "another process"
	if pid := readPID(f); pid != "" {
		holder = "process " + pid
	}
	return fmt.Errorf("the data folder %s is in use by %s: stop it, or give another folder", dir, holder)
}

// readPID is empty in the moment between another's lock and its writing.
func readPID(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0) // the end of the file is no error here
	return strings.TrimSpace(string(b[:n]))
}

// release leaves the file: removing it would let a third process lock a new
// file of that name while a second holds the old one.
func (l *dirLock) release() error {
	if l == nil {
		return nil
	}
	return l.f.Close()
}
