//go:build darwin || linux

package realservers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Concurrent callers get the same folder, which is filled once by one of them.
func TestAFolderIsFilledOnce(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	var all sync.WaitGroup
	var fills, inside atomic.Int32
	for range 8 {
		all.Go(func() {
			dir, err := cachedFolder("a", func(dir string) error {
				fills.Add(1)
				if inside.Add(1) > 1 {
					t.Error("two fill it at once")
				}
				defer inside.Add(-1)
				runtime.Gosched()
				return os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
			})
			if err == nil {
				_, err = os.Stat(filepath.Join(dir, "file"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("it was filled %d times", n)
	}
}

func TestAFolderThatCannotBeFilledIsNotThere(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	away := errors.New("the registry is away")
	if _, err := cachedFolder("a", func(string) error { return away }); !errors.Is(err, away) {
		t.Fatal(err)
	}
	if _, err := cachedFolder("a", func(string) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	away := errors.New("the registry is away")
	for _, c := range []struct {
		name  string
		fails []error
		asked int
		want  error
	}{
		{"at first", nil, 1, nil},
		{"later", []error{away, away}, 3, nil},
		{"never", []error{away, away, away, away, away}, tries, away},
		{"without the program", []error{exec.ErrNotFound}, 1, exec.ErrNotFound},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			err := insist(t.Context(), func(context.Context) (string, error) {
				asked++
				if asked <= len(c.fails) {
					return "", c.fails[asked-1]
				}
				return "", nil
			})
			if !errors.Is(err, c.want) || asked != c.asked {
				t.Errorf("%s: %v after %d times, want %v after %d", c.name, err, asked, c.want, c.asked)
			}
		})
	}
}

// A jar that a registry has replaced is not run.
func TestJarsThatWereReplaced(t *testing.T) {
	const sums = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.jar\n"
	for what, c := range map[string]struct {
		jars map[string]string
		want string
	}{
		"the same":   {map[string]string{"a.jar": "abc", "pom.xml": "x"}, ""},
		"another":    {map[string]string{"a.jar": "abd"}, "the jar a.jar has the SHA-256"},
		"one more":   {map[string]string{"a.jar": "abc", "b.jar": "b"}, "the jar b.jar has the SHA-256"},
		"one is not": {nil, "Maven sent no a.jar"},
	} {
		dir := t.TempDir()
		for name, text := range c.jars {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := checkSums(dir, sums); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
