//go:build linux

package box

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"
)

func TestLock(t *testing.T) {
	name := "tested-lock-" + strconv.Itoa(os.Getpid())
	first, err := lock(name, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(name, false); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a second one gets %v", err)
	}
	type result struct {
		file *os.File
		err  error
	}
	waited := make(chan result)
	for range 2 {
		go func() {
			file, err := lock(name, true)
			waited <- result{file, err}
		}()
	}
	if err := unlock(first); err != nil {
		t.Fatal(err)
	}
	// The file at which both may have waited is gone. They must not both get the lock.
	next := <-waited
	if next.err != nil {
		t.Fatal(next.err)
	}
	select {
	case other := <-waited:
		t.Errorf("two have it at once: %v", other)
	default:
	}
	if _, err := lock(name, false); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("beside the one who waited another gets %v", err)
	}
	if err := unlock(next.file); err != nil {
		t.Fatal(err)
	}
	last := <-waited
	if err := errors.Join(last.err, unlock(last.file)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(last.file.Name()); err == nil {
		t.Error("the file is still there")
	}
}
