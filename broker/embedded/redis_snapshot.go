package embedded

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/alicebob/miniredis/v2"
)

// A clean stop writes the keys of Redis to a file, and the next start reads them. Otherwise everything in
// Redis would be computed from the log again: with 700,000 facts that takes half a minute of two cores.
//
// The start removes the file, so after kill -9 there is none, and Redis is empty. Old content would not be
// wrong: Redis is a cache of the log, and its readers know from its offsets how far it is.
//
// Keys with a time to live are left out: they are leases and reports of processes that have ended. So are
// streams, which only the memory of repeats has.

const snapshotMagic = "tidemill redis 1"

func snapshotFile(dir string) string { return filepath.Join(dir, "redis-snapshot") }

// build identifies the program, because another build may keep other things in Redis. It is empty if it is
// not known.
func build() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
}

// save writes the snapshot. The server must be closed. A snapshot that a kill cuts off has another name.
func save(m *miniredis.Miniredis, dir, build string) (err error) {
	if build == "" {
		return nil
	}
	name := snapshotFile(dir)
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write the snapshot of redis: %w", err)
	}
	w := snapshotWriter{b: bufio.NewWriterSize(f, 1<<20), sum: crc32.New(castagnoli)}
	w.texts(snapshotMagic, build)
	for _, key := range m.Keys() {
		if m.TTL(key) == 0 {
			w.key(m, key)
		}
	}
	w.texts("")
	w.number(uint64(w.sum.Sum32()))
	if err := errors.Join(w.err, w.b.Flush(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the snapshot of redis: %w", err), os.Remove(name+".new"))
	}
	return os.Rename(name+".new", name)
}

// castagnoli is the polynomial that processors compute; the table is read only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshotWriter keeps its first error.
type snapshotWriter struct {
	b   *bufio.Writer
	sum hash.Hash32
	err error
}

func (w *snapshotWriter) number(n uint64) {
	w.write(binary.AppendUvarint(nil, n))
}

// texts writes texts with their lengths.
func (w *snapshotWriter) texts(all ...string) {
	for _, text := range all {
		w.number(uint64(len(text)))
		w.write([]byte(text))
	}
}

func (w *snapshotWriter) write(p []byte) {
	if w.err == nil {
		_, w.err = w.b.Write(p)
		w.sum.Write(p) // never fails
	}
}

// key writes a key: its kind, its name, the number of its items and the items.
func (w *snapshotWriter) key(m *miniredis.Miniredis, key string) {
	kind := m.Type(key)
	var items []string
	var err error
	switch kind {
	case "hash":
		var fields []string
		fields, err = m.HKeys(key)
		for _, field := range fields {
			items = append(items, field, m.HGet(key, field))
		}
	case "zset":
		var scores map[string]float64
		scores, err = m.SortedSet(key)
		for member, score := range scores {
			items = append(items, member, strconv.FormatFloat(score, 'g', -1, 64))
		}
	case "set":
		items, err = m.Members(key)
	case "list":
		items, err = m.List(key)
	case "string":
		items = make([]string, 1)
		items[0], err = m.Get(key)
	default:
		return
	}
	w.err = errors.Join(w.err, err)
	w.texts(kind, key)
	w.number(uint64(len(items)))
	w.texts(items...)
}

// restore reads the snapshot of the last clean stop into an empty server, and removes it. A snapshot of
// another build, or one that is not whole, is only removed.
func restore(m *miniredis.Miniredis, dir, build string) error {
	f, err := os.Open(snapshotFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		readSnapshot(m, f, build)
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		return fmt.Errorf("read the snapshot of redis: %w; remove the file %s, and everything is computed from the log", err, snapshotFile(dir))
	}
	return nil
}

// readSnapshot leaves the server empty if the snapshot is not whole.
func readSnapshot(m *miniredis.Miniredis, f io.Reader, build string) {
	r := snapshotReader{b: bufio.NewReaderSize(f, 1<<20), sum: crc32.New(castagnoli)}
	if r.text() != snapshotMagic || r.text() != build {
		return
	}
	if r.keys(func(kind, key string, items []string) error { return put(m, kind, key, items) }) != nil {
		m.FlushAll()
	}
}

// errNotWhole says that a snapshot was cut off or has changed.
var errNotWhole = errors.New("it is not whole")

// snapshotReader keeps its first error.
type snapshotReader struct {
	b   *bufio.Reader
	sum hash.Hash32
	err error
}

// longest is the length of the longest text that Redis takes.
const longest = maxItem

func (r *snapshotReader) keys(take func(kind, key string, items []string) error) error {
	for kind := r.text(); kind != "" && r.err == nil; kind = r.text() {
		key := r.text()
		var items []string
		for n := r.number(); n > 0 && r.err == nil; n-- {
			items = append(items, r.text())
		}
		if r.err == nil {
			r.err = take(kind, key, items)
		}
	}
	want := r.sum.Sum32()
	if n := r.number(); r.err == nil && n != uint64(want) {
		r.err = errNotWhole
	}
	return r.err
}

func (r *snapshotReader) number() uint64 {
	if r.err != nil {
		return 0
	}
	n, err := binary.ReadUvarint(r.b)
	if err != nil {
		r.err = errNotWhole
		return 0
	}
	r.sum.Write(binary.AppendUvarint(nil, n)) // never fails
	return n
}

func (r *snapshotReader) text() string {
	n := r.number()
	if n > longest {
		r.err = errNotWhole
	}
	if r.err != nil {
		return ""
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(r.b, p); err != nil {
		r.err = errNotWhole
		return ""
	}
	r.sum.Write(p) // never fails
	return string(p)
}

// put writes a key into the server.
func put(m *miniredis.Miniredis, kind, key string, items []string) (err error) {
	switch kind {
	case "hash":
		m.HSet(key, items...)
	case "zset":
		for i := 0; i+1 < len(items) && err == nil; i += 2 {
			var score float64
			if score, err = strconv.ParseFloat(items[i+1], 64); err == nil {
				_, err = m.ZAdd(key, score, items[i])
			}
		}
	case "set":
		_, err = m.SAdd(key, items...)
	case "list":
		_, err = m.RPush(key, items...)
	case "string":
		for _, value := range items {
			err = m.Set(key, value)
		}
	}
	return err
}
