package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	digestFiles = 20_000
	digestBytes = 64 << 20
	digestFresh = time.Second // several runs begin at once
)

// folderDigests tells versions of recipes' folders apart, as an image's digest
// does of images.
type folderDigests struct {
	mu  sync.Mutex
	all map[string]*folderDigest
}

// folderDigest is one folder's. It remembers its files by their size and time,
// so that to look again is cheap.
type folderDigest struct {
	mu    sync.Mutex
	at    time.Time
	value string
	files map[string]fileDigest
}

type fileDigest struct {
	size int64
	time time.Time
	sum  string
}

// of is the digest of a folder; empty if it cannot be read, which is told by
// whoever runs something in it.
func (f *folderDigests) of(dir string) string {
	f.mu.Lock()
	if f.all == nil {
		f.all = map[string]*folderDigest{}
	}
	one := f.all[dir]
	if one == nil {
		one = &folderDigest{}
		f.all[dir] = one
	}
	f.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if time.Since(one.at) > digestFresh {
		one.value = one.look(dir)
		one.at = time.Now()
	}
	return one.value
}

var errEnough = errors.New("enough")

// look goes through the folder. What is beyond the bounds counts by its size and
// time alone, or not at all: to be cheap matters more for a folder so large.
func (d *folderDigest) look(dir string) string {
	h, now := sha256.New(), map[string]fileDigest{}
	files, left := 0, int64(digestBytes)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && name == dir:
			return err
		case err != nil:
			return nil // it has gone meanwhile
		case e.IsDir():
			return skip(name == dir, e.Name())
		}
		if files++; files > digestFiles {
			return errEnough
		}
		d.add(h, now, dir, name, &left)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return ""
	}
	d.files = now
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// skip passes over what others make and keep in a folder of programs, our own
// data among it.
func skip(top bool, name string) error {
	if !top && (strings.HasPrefix(name, ".") || name == "__pycache__" || name == "node_modules" || name == "venv") {
		return fs.SkipDir
	}
	return nil
}

func (d *folderDigest) add(h hash.Hash, now map[string]fileDigest, dir, name string, left *int64) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	is := fileDigest{size: info.Size(), time: info.ModTime()}
	if was, ok := d.files[name]; ok && was.size == is.size && was.time.Equal(is.time) {
		is.sum = was.sum
		*left -= is.size
	} else if *left -= is.size; *left >= 0 {
		is.sum = sumOf(name)
	}
	if is.sum == "" {
		is.sum = is.time.UTC().Format(time.RFC3339Nano)
	}
	now[name] = is
	relative := strings.TrimPrefix(name, dir)
	fmt.Fprintf(h, "%q %d %t %s\n", filepath.ToSlash(relative), is.size, info.Mode()&0o111 != 0, is.sum)
}

// sumOf is a file's digest; empty if it cannot be read.
func sumOf(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
