//go:build linux

package local

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// asUser calls fn as a user who is not root, because root heeds no modes. The folder is the user's.
func asUser(t *testing.T, dir string, fn func() error) error {
	t.Helper()
	if os.Getuid() != 0 {
		return fn()
	}
	const nobody = 65534
	for at := dir; at != filepath.Clean(os.TempDir()) && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0)
		done <- fn()
	}()
	return <-done
}

// The inputs of a run are in read-only folders. A launcher that finds those of a killed predecessor must start.
func TestReadOnlyFoldersOfAPredecessor(t *testing.T) {
	dir := t.TempDir()
	input := filepath.Join(dir, workName, "run1-1", "in", "examples")
	err := asUser(t, dir, func() error {
		for _, err := range []error{
			(launcherRecord{Cookie: "none"}).leave(dir),
			os.MkdirAll(input, 0o700),
			os.WriteFile(filepath.Join(input, "a.csv"), nil, 0o444),
			os.Chmod(input, 0o555),
			os.Chmod(filepath.Dir(input), 0o555),
		} {
			if err != nil {
				return err
			}
		}
		return cleanUpPredecessor(t.Context(), dir)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, workName)); !os.IsNotExist(err) {
		t.Errorf("the work folder is still there: %v", err)
	}
}
