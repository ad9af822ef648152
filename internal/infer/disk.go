package infer

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// disk keeps the files of models in a folder, which processes may share: a file
// gets its name when it is whole, is checked when it is read, and is only ever
// removed. When it was used last is its time of change.
type disk struct {
	dir     string
	most    int64
	log     *slog.Logger
	now     func() time.Time
	running *sync.WaitGroup

	written  atomic.Int64 // since the folder was looked through last
	trimming atomic.Bool
	failing  atomic.Bool // so that a full disk is said once
}

const (
	fileEnd = ".model"
	tempEnd = ".part"
	// tempFor is how long somebody may write. What is older was left by a process
	// that died.
	tempFor = time.Hour
	// freshFor keeps a file that is read often from being touched as often.
	freshFor = time.Minute

	// Two processes that fill a folder find it too full before it is: each looks
	// through it when it has written a share, and leaves room for two.
	trimShare = 16
	trimRoom  = 2
)

func openDisk(dir string, most int64, log *slog.Logger, running *sync.WaitGroup) (*disk, error) {
	d := &disk{dir: dir, most: most, log: log, now: time.Now, running: running}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for models that were fetched: %w", err)
	}
	if err := d.trim(); err != nil {
		return nil, fmt.Errorf("look through the folder of models that were fetched: %w", err)
	}
	return d, nil
}

// path is where an artifact's file is. A tree's digest is its name; what is none
// is hashed, so that no name leads out of the folder.
func (d *disk) path(artifact string) string {
	name := artifact
	if raw, err := hex.DecodeString(artifact); err != nil || len(raw) != sha256.Size || strings.ToLower(artifact) != artifact {
		sum := sha256.Sum256([]byte(artifact))
		name = "x" + hex.EncodeToString(sum[:])
	}
	return filepath.Join(d.dir, name[:2], name+fileEnd)
}

// read gets a model's files, unless they are not there or not whole. What is
// broken is removed, and will be fetched again.
func (d *disk) read(artifact string) (files, bool) {
	at := d.path(artifact)
	data, err := os.ReadFile(at)
	if errors.Is(err, fs.ErrNotExist) {
		return files{}, false
	}
	var f files
	if err == nil {
		f, err = decode(data, artifact)
	}
	if err != nil {
		d.log.Warn("a fetched model cannot be read from the disk and is fetched again", "file", at, "reason", err)
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("it cannot be removed either", "file", at, "reason", err)
		}
		return files{}, false
	}
	d.touch(at)
	return f, true
}

// touch notes that a file was used. If that fails, it is only taken for older.
func (d *disk) touch(at string) {
	if i, err := os.Stat(at); err == nil && d.now().Sub(i.ModTime()) > freshFor {
		_ = os.Chtimes(at, time.Time{}, d.now())
	}
}

// write keeps a model's files. That they cannot be kept is said, and is no reason
// not to serve the model.
func (d *disk) write(artifact string, f files) {
	at := d.path(artifact)
	n, err := d.put(at, encode(artifact, f))
	switch {
	case err == nil:
		d.failing.Store(false)
	case !d.failing.Swap(true):
		d.log.Warn("fetched models are not kept on the disk; until they are, each is fetched again when it is loaded", "file", at, "reason", err)
	}
	if d.written.Add(n) >= d.most/trimShare && d.trimming.CompareAndSwap(false, true) {
		d.written.Store(0)
		d.running.Go(func() { // a load that is under way holds the group open
			defer d.trimming.Store(false)
			if err := d.trim(); err != nil {
				d.log.Warn("the folder of fetched models cannot be looked through", "file", d.dir, "reason", err)
			}
		})
	}
}

func (d *disk) put(at string, parts [][]byte) (n int64, err error) {
	for _, p := range parts {
		n += int64(len(p))
	}
	if n > d.most/trimShare {
		return 0, nil // it would push out far too much, and is seldom loaded
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return 0, err
	}
	temp := at + "." + rand.Text() + tempEnd
	if err := writeFile(temp, parts); err != nil {
		return 0, errors.Join(err, gone(os.Remove(temp)))
	}
	if err := os.Rename(temp, at); err != nil {
		return 0, errors.Join(err, gone(os.Remove(temp)))
	}
	return n, nil
}

// writeFile does not wait until the disk has it: what a crash tears is found when
// it is read.
func writeFile(at string, parts [][]byte) error {
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
