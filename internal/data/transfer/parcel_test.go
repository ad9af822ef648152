package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/api"
)

func leave(t testing.TB, dir, name string, data []byte, mode os.FileMode) {
	t.Helper()
	at := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, data, mode); err != nil {
		t.Fatal(err)
	}
}

// hole writes a file that begins with zeros, which take no space on the disk, and ends with a text.
func hole(t testing.TB, dir, name string, zeros int64, text string) {
	t.Helper()
	leave(t, dir, name, nil, 0o644)
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err == nil {
		err = errors.Join(f.Truncate(zeros), ignoring(f.WriteAt([]byte(text), zeros)), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func ignoring(_ int, err error) error { return err }

func noise(n int) []byte {
	b := make([]byte, n)
	c := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = c.Read(b)
	return b
}

// sample returns a folder with all kinds of files: empty, small, two with the same content, a
// program, one as long as a part, and a large one that begins with the same part.
func sample(t testing.TB) string {
	dir := t.TempDir()
	leave(t, dir, "empty", nil, 0o644)
	leave(t, dir, "a/one.txt", []byte("one"), 0o644)
	leave(t, dir, "a/again.txt", []byte("one"), 0o644)
	leave(t, dir, "a-b", []byte("sorts between"), 0o644)
	leave(t, dir, "run.sh", []byte("#!/bin/sh\n"), 0o755)
	leave(t, dir, "middle", noise(3<<20), 0o644)
	hole(t, dir, "part", api.PartSize, "")
	hole(t, dir, "large", api.PartSize, "hello")
	if err := os.Symlink("a/one.txt", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "latest")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func scanned(t testing.TB, dir string) []api.File {
	t.Helper()
	all, err := Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestScan(t *testing.T) {
	t.Parallel()
	files, size := 0, int64(0)
	all, err := Scan(t.Context(), sample(t), func(f int, b int64) { files, size = files+f, size+b })
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	sum := int64(0)
	for _, f := range all {
		paths = append(paths, fmt.Sprintf("%s %d %d %t", f.Path, f.Size, len(f.Parts), f.Executable))
		sum += f.Size
	}
	const want = `a-b 13 0 false
a/again.txt 3 0 false
a/one.txt 3 0 false
empty 0 0 false
large 67108869 2 false
latest/again.txt 3 0 false
latest/one.txt 3 0 false
link 3 0 false
middle 3145728 0 false
part 67108864 0 false
run.sh 10 0 true`
	if got := strings.Join(paths, "\n"); got != want {
		t.Errorf("got\n%s", got)
	}
	if files != len(all) || size != sum {
		t.Errorf("told of %d files, %d bytes", files, size)
	}
	if all[3].Digest != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" || all[4].Parts[1].Size != 5 {
		t.Errorf("%+v", all[3:5])
	}
}

func TestScanRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(dir string) error
		says string
	}{
		"a link out":     {func(dir string) error { return os.Symlink("../x", filepath.Join(dir, "out")) }, "out is a link to a place outside the folder"},
		"absolute":       {func(dir string) error { return os.Symlink("/etc", filepath.Join(dir, "out")) }, "out is a link to a place outside the folder"},
		"a link to none": {func(dir string) error { return os.Symlink("none", filepath.Join(dir, "gone")) }, "gone is a link to nothing"},
		"a circle":       {func(dir string) error { return os.Symlink(".", filepath.Join(dir, "me")) }, "me/me is a link to a folder, below another"},
		"a pipe":         {func(dir string) error { return mkfifo(filepath.Join(dir, "pipe")) }, "pipe is a pipe, and only files can be kept"},
		"no UTF-8":       {func(dir string) error { return os.WriteFile(filepath.Join(dir, "a\xff"), nil, 0o600) }, "is not UTF-8"},
		"no folder":      {os.RemoveAll, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := c.make(dir); err != nil {
				t.Skip(err)
			}
			if all, err := Scan(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, %v", all, err)
			}
		})
	}
}

func TestPutAndGet(t *testing.T) {
	t.Parallel()
	from := sample(t)
	for name, change := range map[string]func(*depot, *Client){
		"through the gateway":  func(*depot, *Client) {},
		"signed, with a cache": func(d *depot, c *Client) { d.signed, c.Cache = true, t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, to := newDepot(t), t.TempDir()
			c := d.client()
			change(d, c)
			all := scanned(t, from)
			var files, moved int
			c.Moved = func(_ int, n int64) { moved += int(n) }
			if err := c.Put(t.Context(), from, all, func(f int, _ int64) { files += f }); err != nil {
				t.Fatal(err)
			}
			if want := api.PartSize + 5 + 3<<20 + len("one") + len("sorts between") + len("#!/bin/sh\n"); files != len(all) || moved != want {
				t.Errorf("%d of %d files, and %d bytes moved, not %d", files, len(all), moved, want)
			}
			moved = 0
			if err := c.Put(t.Context(), from, all, nil); err != nil || moved != 0 {
				t.Errorf("again: %v, and %d bytes moved", err, moved)
			}
			if err := c.Get(t.Context(), to, all, nil); err != nil {
				t.Fatal(err)
			}
			same(t, from, to, all)
			if d.strayed > 0 {
				t.Errorf("%d requests had the wrong credential", d.strayed)
			}
		})
	}
}

func same(t *testing.T, from, to string, all []api.File) {
	t.Helper()
	for _, f := range all {
		a, err := os.ReadFile(filepath.Join(from, f.Path))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(to, f.Path))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes became %d, %v", f.Path, len(a), len(b), err)
		}
		info, err := os.Lstat(filepath.Join(to, f.Path))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 != 0 != f.Executable {
			t.Errorf("%s: %v, %v", f.Path, info, err)
		}
	}
	n := 0
	err := filepath.WalkDir(to, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	})
	if err != nil || n != len(all) {
		t.Errorf("%d files instead of %d, %v", n, len(all), err)
	}
}
