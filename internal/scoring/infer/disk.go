package infer

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// disk keeps the files of models in a folder that processes may share. A file gets its
// name once it is complete, is verified when it is read, and never changes. Its
// modification time is the time of its last use.
type disk struct {
	dir     string
	most    int64
	log     *slog.Logger
	now     func() time.Time
	running *sync.WaitGroup

	written  atomic.Int64 // bytes written since the last trim
	trimming atomic.Bool
	failing  atomic.Bool // a full disk is logged once
}

const (
	fileEnd = ".model"
	tempEnd = ".part"
	// tempFor is the longest time that a write may take. An older temporary file was
	// left by a process that died.
	tempFor = time.Hour
	// freshFor is the shortest time between two touches of a file.
	freshFor = time.Minute

	// Two processes that fill one folder each count only their own bytes. So each trims
	// the folder after it has written this share, and leaves room for two shares.
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

// path returns the file of an artifact. A tree's digest is the name. Any other text is
// hashed, so that no name leads out of the folder.
func (d *disk) path(artifact string) string {
	name := artifact
	if raw, err := hex.DecodeString(artifact); err != nil || len(raw) != sha256.Size || strings.ToLower(artifact) != artifact {
		sum := sha256.Sum256([]byte(artifact))
		name = "x" + hex.EncodeToString(sum[:])
	}
	return filepath.Join(d.dir, name[:2], name+fileEnd)
}

// read returns a model's files, if they are there and complete. It removes broken
// files; they will be fetched again.
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
		d.log.Warn("models: reading a model from the cache failed; fetching it again", "file", at, "reason", err)
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("models: removing a broken model from the cache failed", "file", at, "reason", err)
		}
		return files{}, false
	}
	d.touch(at)
	return f, true
}

// touch marks a file as used. A failure only makes it look older.
func (d *disk) touch(at string) {
	if i, err := os.Stat(at); err == nil && d.now().Sub(i.ModTime()) > freshFor {
		_ = os.Chtimes(at, time.Time{}, d.now())
	}
}

// write stores a model's files. A failure is logged, and the model is served anyway.
func (d *disk) write(artifact string, f files) {
	at := d.path(artifact)
	n, err := d.put(at, encode(artifact, f))
	switch {
	case err == nil:
		d.failing.Store(false)
	case !d.failing.Swap(true):
		d.log.Warn("models: writing to the cache failed; models are fetched again when they are loaded", "file", at, "reason", err)
	}
	if d.written.Add(n) >= d.most/trimShare && d.trimming.CompareAndSwap(false, true) {
		d.written.Store(0)
		d.running.Go(func() { // the running load keeps the group open
			defer d.trimming.Store(false)
			if err := d.trim(); err != nil {
				d.log.Warn("models: trimming the cache failed; it may exceed its limit", "file", d.dir, "reason", err)
			}
		})
	}
}

func (d *disk) put(at string, parts [][]byte) (n int64, err error) {
	for _, p := range parts {
		n += int64(len(p))
	}
	if n > d.most/trimShare {
		return 0, nil // would evict too much, and is rarely loaded
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

// writeFile does not sync. A file that a crash tears is found when it is read.
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

// keptFile is a file in the folder.
type keptFile struct {
	path string
	size int64
	used time.Time
}

// trim removes the files that were used longest ago until there is room, and those that
// dead processes left. It ignores files that another process removes at the same time.
func (d *disk) trim() error {
	all, err := d.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range surplus(all, d.most-trimRoom*d.most/trimShare) {
		errs = append(errs, gone(os.Remove(k.path)))
	}
	return errors.Join(errs...)
}

// surplus returns the files to remove so that the rest is at most some bytes.
func surplus(all []keptFile, most int64) []keptFile {
	slices.SortFunc(all, func(a, b keptFile) int { return b.used.Compare(a.used) })
	sum := int64(0)
	for i, k := range all {
		if sum += k.size; sum > most {
			return all[i:]
		}
	}
	return nil
}

func (d *disk) list() (all []keptFile, err error) {
	err = filepath.WalkDir(d.dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return gone(err)
		}
		temp := strings.HasSuffix(at, tempEnd)
		if !temp && !strings.HasSuffix(at, fileEnd) {
			return nil // not a file of the cache
		}
		i, err := e.Info()
		switch {
		case err != nil:
			return gone(err)
		case !temp:
			all = append(all, keptFile{at, i.Size(), i.ModTime()})
		case d.now().Sub(i.ModTime()) > tempFor:
			return gone(os.Remove(at))
		}
		return nil
	})
	return all, err
}

// Layout of a file on disk: a magic text, then the artifact, model.yaml and model.onnx,
// each after its length, then the SHA-256 of everything.
const (
	layout  = "tidemill model 1\n"
	lengths = 8
)

var errTorn = errors.New("it is not what was written")

// encode returns the parts of a file. It does not copy the model.
func encode(artifact string, f files) [][]byte {
	head := []byte(layout)
	for _, part := range [][]byte{[]byte(artifact), f.card} {
		head = binary.BigEndian.AppendUint64(head, uint64(len(part)))
		head = append(head, part...)
	}
	head = binary.BigEndian.AppendUint64(head, uint64(len(f.model)))
	h := sha256.New()
	h.Write(head)
	h.Write(f.model)
	return [][]byte{head, f.model, h.Sum(nil)}
}

// decode splits a file into its parts. The file must be unchanged since it was written,
// and of that artifact.
func decode(data []byte, artifact string) (f files, err error) {
	if len(data) < len(layout)+sha256.Size || !bytes.HasPrefix(data, []byte(layout)) {
		return f, errTorn
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if is := sha256.Sum256(body); !bytes.Equal(is[:], sum) {
		return f, errTorn
	}
	rest := body[len(layout):]
	var name []byte
	for _, part := range []*[]byte{&name, &f.card, &f.model} {
		if len(rest) < lengths {
			return f, errTorn
		}
		n := binary.BigEndian.Uint64(rest)
		if rest = rest[lengths:]; n > uint64(len(rest)) {
			return f, errTorn
		}
		*part, rest = rest[:n:n], rest[n:]
	}
	if string(name) != artifact || len(rest) > 0 {
		return f, errTorn
	}
	return f, nil
}
