package embedded

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestSecondStartOnTheFolderFails(t *testing.T) {
	dir := t.TempDir()
	kill, _ := startChild(t, dir)
	b, err := os.ReadFile(filepath.Join(dir, "lock"))
	must(t, err)
	pid := strings.TrimSpace(string(b))
	_, err = Start(t.Context(), Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "process "+pid) {
		t.Errorf("the error shall name the folder and process %s: %v", pid, err)
	}
	kill()
	start(t, Options{Dir: dir}) // a killed process no longer holds the lock
	b, err = os.ReadFile(filepath.Join(dir, "lock"))
	must(t, err)
	if strings.TrimSpace(string(b)) != strconv.Itoa(os.Getpid()) {
		t.Errorf("the lock names %s", b)
	}
}

func TestSecondStartInTheProcessFails(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	if _, err := Start(t.Context(), Options{Dir: dir}); err == nil {
		t.Fatal("started twice")
	}
	must(t, s.Close())
	start(t, Options{Dir: dir})
}

func TestFailedStartFreesTheFolder(t *testing.T) {
	dir := t.TempDir()
	other := start(t, Options{})
	if _, err := Start(t.Context(), Options{Dir: dir, Redis: other.Redis()}); err == nil {
		t.Fatal("started on a port in use")
	}
	start(t, Options{Dir: dir})
}
