package outcomes

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// index holds the entries: the newest in memory, all others in segments on disk. An entry in a newer
// segment replaces the same entry in older ones. Nothing is merged: entries die by age, so whole segments do.
// The disk is a cache. What it holds follows from the logs up to the manifest's places.
type index struct {
	dir      string // folder of this owner; empty after an error
	most     int    // entries in memory
	temp     bool   // whether the folder is removed at the end
	table    *table
	segments []*segment // oldest first
	places   places     // places in the logs that the segments hold
	next     int        // number of the next segment
}

// table is the part of the index that is in memory.
type table struct {
	at     map[hash]span
	bytes  []byte // encoded entries; replaced ones stay until the table is written
	newest int64
}

type span struct{ from, to uint32 }

func newTable() *table { return &table{at: map[hash]span{}} }

func (t *table) get(s span) []byte { return t.bytes[s.from:s.to] }

// mostTableBytes bounds the memory of entries that are larger than most.
const mostTableBytes = 96 << 20

// places are offsets of the logs, one for each partition: all before them is known.
type places struct {
	Answers  []int64 `json:"answers"`
	Labels   []int64 `json:"labels"`
	Outcomes []int64 `json:"outcomes"`
}

type manifest struct {
	Form     int      `json:"form"`
	Settings string   `json:"settings"` // settings of the labels; other settings make other entries
	Segments []string `json:"segments"` // file names, oldest first
	Places   places   `json:"places"`
}

const (
	manifestForm = 1
	manifestFile = "manifest.json"
)

// openIndex takes the index of this scorer's last owner on this machine, if there is one. It renames the folder,
// so that an owner that still runs fails at its next write instead of damaging it.
func openIndex(dir, settings string, most int) (*index, error) {
	x := &index{most: most, table: newTable()}
	if dir == "" {
		temp, err := os.MkdirTemp("", "tidemill-outcomes-")
		if err != nil {
			return nil, fmt.Errorf("make a folder for the answers that wait: %w", err)
		}
		x.dir, x.temp = temp, true
		return x, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the answers that wait: %w", err)
	}
	x.dir = filepath.Join(dir, rand.Text()[:12])
	old, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for the answers that wait: %w", err)
	}
	taken := false
	for _, e := range old {
		path := filepath.Join(dir, e.Name())
		if taken || os.Rename(path, x.dir) != nil {
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("remove an old folder: %w", err)
			}
			continue
		}
		if taken = x.load(settings) == nil; !taken {
			x.closeFiles()
			if err := os.RemoveAll(x.dir); err != nil {
				return nil, fmt.Errorf("remove a damaged folder: %w", err)
			}
		}
	}
	if taken {
		return x, nil
	}
	if err := os.Mkdir(x.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the answers that wait: %w", err)
	}
	return x, nil
}

// load opens the segments of the manifest and removes other files.
func (x *index) load(settings string) error {
	text, err := os.ReadFile(filepath.Join(x.dir, manifestFile))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	if m.Form != manifestForm || m.Settings != settings {
		return fmt.Errorf("form %d or other settings", m.Form)
	}
	for _, name := range m.Segments {
		s, err := openSegment(filepath.Join(x.dir, name))
		if err != nil {
			return err
		}
		x.segments = append(x.segments, s)
		if n, err := strconv.Atoi(name); err == nil {
			x.next = max(x.next, n+1)
		}
	}
	x.places = m.Places
	all, err := os.ReadDir(x.dir)
	for _, e := range all {
		if name := e.Name(); name != manifestFile && !slices.Contains(m.Segments, name) {
			err = errors.Join(err, os.Remove(filepath.Join(x.dir, name)))
		}
	}
	return err
}

// isEmpty reports whether the index holds nothing of the logs.
func (x *index) isEmpty() bool { return x.places.Answers == nil }

// reset forgets all entries, for an index that the logs contradict.
func (x *index) reset() error {
	x.closeFiles()
	x.table, x.places = newTable(), places{}
	if err := os.RemoveAll(x.dir); err != nil {
		return fmt.Errorf("remove the answers that wait: %w", err)
	}
	if err := os.Mkdir(x.dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for the answers that wait: %w", err)
	}
	return nil
}

// get returns the bytes of an entry, which are valid until the next call; nil if there is none.
func (x *index) get(h *hash) ([]byte, error) {
	if s, ok := x.table.at[*h]; ok {
		return x.table.get(s), nil
	}
	for _, s := range slices.Backward(x.segments) {
		if b, err := s.get(h); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// put stores an entry in place of the one before.
func (x *index) put(h *hash, e *entry) {
	t := x.table
	from := len(t.bytes)
	t.bytes = e.append(t.bytes)
	t.at[*h] = span{uint32(from), uint32(len(t.bytes))}
	t.newest = max(t.newest, e.newest)
}

// isFull reports whether the entries in memory should be written to disk.
func (x *index) isFull() bool {
	return len(x.table.at) >= x.most || len(x.table.bytes) >= mostTableBytes
}

// seal writes the entries in memory to disk. They hold the logs up to the given places.
func (x *index) seal(settings string, at places) error {
	name := strconv.Itoa(x.next)
	s, err := writeSegment(filepath.Join(x.dir, name), x.table)
	if err != nil {
		return fmt.Errorf("write the answers that wait to disk: %w; another owner of the scorer may have taken the folder, or the disk is full", err)
	}
	x.next++
	x.segments, x.places = append(x.segments, s), at
	clear(x.table.at) // its memory is used again
	x.table.bytes, x.table.newest = x.table.bytes[:0], 0
	return x.writeManifest(settings)
}

// writeManifest replaces the manifest at once, so a kill leaves the old one or the new one.
func (x *index) writeManifest(settings string) error {
	m := manifest{Form: manifestForm, Settings: settings, Places: x.places}
	for _, s := range x.segments {
		m.Segments = append(m.Segments, filepath.Base(s.path))
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(x.dir, manifestFile)
	if err = os.WriteFile(path+".new", text, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write the list of the answers that wait: %w", err)
	}
	return nil
}

// drop removes the segments whose newest member is older than a time.
func (x *index) drop(before int64, settings string) error {
	keep := x.segments[:0:0]
	var gone []*segment
	for _, s := range x.segments {
		if s.newest < before {
			gone = append(gone, s)
		} else {
			keep = append(keep, s)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	x.segments = keep
	err := x.writeManifest(settings)
	for _, s := range gone {
		err = errors.Join(err, s.file.Close(), os.Remove(s.path))
	}
	return err
}

// count returns about how many entries there are; an entry that was replaced counts twice.
func (x *index) count() int {
	n := len(x.table.at)
	for _, s := range x.segments {
		n += s.count
	}
	return n
}

func (x *index) closeFiles() {
	for _, s := range x.segments {
		_ = s.file.Close() // it was only read
	}
	x.segments = nil
}

// close closes the files. The next owner on this machine finds them.
func (x *index) close() error {
	x.closeFiles()
	if !x.temp {
		return nil
	}
	if err := os.RemoveAll(x.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
