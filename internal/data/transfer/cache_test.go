package transfer

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"tidemill.dev/api"
)

// filledDepot returns a depot with a folder's files, and a client with a cache.
func filledDepot(t *testing.T, dir string) (*depot, *Client, []api.File) {
	t.Helper()
	d := newDepot(t)
	c, all := d.client(), scanned(t, dir)
	if err := c.Put(t.Context(), dir, all, nil); err != nil {
		t.Fatal(err)
	}
	c.Cache = filepath.Join(t.TempDir(), "cache")
	return d, c, all
}

func TestTheCacheIsUsed(t *testing.T) {
	t.Parallel()
	from := many(t, 20)
	leave(t, from, "run.sh", []byte("#!/bin/sh\n"), 0o755)
	leave(t, from, "no-run.sh", []byte("#!/bin/sh\n"), 0o644)
	d, c, all := filledDepot(t, from)
	first, second := t.TempDir(), t.TempDir()
	for _, to := range []string{first, second} {
		if err := c.Get(t.Context(), to, all, nil); err != nil {
			t.Fatal(err)
		}
		same(t, from, to, all)
	}
	if n := d.count("GET /base/object"); n != len(all) {
		t.Errorf("%d objects were got", n)
	}
	for _, f := range all {
		info, err := os.Stat(filepath.Join(second, f.Path))
		if err != nil || info.Mode().Perm()&0o222 != 0 {
			t.Errorf("%s: %v, %v", f.Path, info.Mode(), err)
		}
		other, err := os.Stat(filepath.Join(first, f.Path))
		if err != nil || !os.SameFile(info, other) {
			t.Errorf("%s is a copy: %v", f.Path, err)
		}
	}
}

// A process that writes to a file from the cache does not spoil it for later users.
func TestASpoiltCache(t *testing.T) {
	t.Parallel()
	from := many(t, 3)
	_, c, all := filledDepot(t, from)
	first, second := t.TempDir(), t.TempDir()
	if err := c.Get(t.Context(), first, all, nil); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(first, all[0].Path)
	if err := os.Chmod(victim, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(victim, []byte("FILE 0"), 0o644); err != nil { // content of the same length
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), second, all, nil); err != nil {
		t.Fatal(err)
	}
	same(t, from, second, all)
}

// The digest of a whole file is not verified: a file with false parts is cached separately.
func TestALieAboutAWhole(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	leave(t, from, "true", []byte("true"), 0o644)
	leave(t, from, "false", []byte("lies"), 0o644)
	_, c, all := filledDepot(t, from)
	lie := all[1] // name of one file, parts of the other
	lie.Parts = []api.Part{{Digest: all[0].Digest, Size: 4}}
	if err := c.Get(t.Context(), t.TempDir(), []api.File{lie}, nil); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := c.Get(t.Context(), to, all, nil); err != nil {
		t.Fatal(err)
	}
	same(t, from, to, all)
}

func TestManyShareACache(t *testing.T) {
	t.Parallel()
	from := many(t, 50)
	_, c, all := filledDepot(t, from)
	var getting sync.WaitGroup
	for range 8 {
		to := t.TempDir()
		getting.Go(func() {
			if err := c.Get(t.Context(), to, all, nil); err != nil {
				t.Error(err)
				return
			}
			same(t, from, to, all)
		})
	}
	getting.Wait()
}

func TestOldDraftsAreRemoved(t *testing.T) {
	t.Parallel()
	c, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	leave(t, c.drafts(), "old", nil, 0o600)
	leave(t, c.drafts(), "new", nil, 0o600)
	now := time.Now()
	if err := os.Chtimes(filepath.Join(c.drafts(), "old"), now, now.Add(-2*staleAfter)); err != nil {
		t.Fatal(err)
	}
	c.clean(now)
	if left := mustReadDir(t, c.drafts()); len(left) != 1 || left[0].Name() != "new" {
		t.Errorf("%v", left)
	}
}
