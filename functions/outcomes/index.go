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
	"sync/atomic"
)

// index holds the entries: the newest in memory, all others in segments on disk. An entry in a newer
// segment replaces the same entry in older ones. Eight small segments are merged into a large one, once, while
// the owner goes on. Entries die by age, and so do whole segments.
// The disk is a cache. Its content follows from the logs up to the manifest's places.
type index struct {
	dir      string // folder of this owner; empty after an error
	most     int    // entries in memory
	temp     bool   // whether the folder is removed at the end
	table    *table
	segments []*segment // oldest first
	places   places     // places in the logs that the segments hold
	next     int        // number of the next segment

	merging  []*segment // segments that are being merged; nil if there is no merge
	merged   chan mergeResult
	stopping atomic.Bool
}

type mergeResult struct {
	s   *segment
	err error
}

// mergeAt is the number of small segments that are merged.
const mergeAt = 8

// table is the part of the index that is in memory.
type table struct {
	at     map[hash]span
	bytes  []byte // encoded entries; replaced ones stay until the table is written or compacted
	newest int64
	lean   int // bytes of the entries when the table was last compacted
}

type span struct{ from, to uint32 }

func newTable() *table { return &table{at: map[hash]span{}} }

func (t *table) get(s span) []byte { return t.bytes[s.from:s.to] }

// compact drops replaced entries. The old bytes stay valid for those who have got some of them.
func (t *table) compact() {
	t.lean = 0
	for _, s := range t.at {
		t.lean += int(s.to - s.from)
	}
	bytes := make([]byte, 0, t.lean)
	for h, s := range t.at {
		from := len(bytes)
		bytes = append(bytes, t.get(s)...)
		t.at[h] = span{uint32(from), uint32(len(bytes))}
	}
	t.bytes = bytes
}

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
	manifestForm = 2
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
	if len(t.bytes) >= max(mostTableBytes, 2*t.lean) {
		t.compact()
	}
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
	x.table.bytes, x.table.newest, x.table.lean = x.table.bytes[:0], 0, 0
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

// drop removes the segments whose newest member is older than a time, and merges small ones.
func (x *index) drop(before int64, settings string) error {
	if err := x.merge(before, settings); err != nil || x.merging != nil {
		return err
	}
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
	return x.remove(gone, settings)
}

// remove deletes the files of segments that are no longer listed.
func (x *index) remove(gone []*segment, settings string) error {
	err := x.writeManifest(settings)
	for _, s := range gone {
		err = errors.Join(err, s.file.Close(), os.Remove(s.path))
	}
	return err
}

// merge takes the result of a merge that has ended, or begins one.
func (x *index) merge(before int64, settings string) error {
	if x.merging != nil {
		select {
		case r := <-x.merged:
			return x.endMerge(r, settings)
		default:
			return nil
		}
	}
	first := slices.IndexFunc(x.segments, func(s *segment) bool { return s.count <= 2*x.most })
	if first < 0 || len(x.segments)-first < mergeAt {
		return nil
	}
	from := slices.Clone(x.segments[first : first+mergeAt])
	x.merging, x.merged = from, make(chan mergeResult, 1)
	path := filepath.Join(x.dir, strconv.Itoa(x.next))
	x.next++
	go func() {
		s, err := mergeSegments(path, from, before, &x.stopping)
		x.merged <- mergeResult{s, err}
	}()
	return nil
}

func (x *index) endMerge(r mergeResult, settings string) error {
	gone := x.merging
	x.merging = nil
	if r.err != nil {
		return fmt.Errorf("merge files of answers that wait: %w", r.err)
	}
	at := slices.Index(x.segments, gone[0])
	x.segments = slices.Replace(x.segments, at, at+len(gone), r.s)
	return x.remove(gone, settings)
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
	if x.merging != nil { // its file is not listed, and the next owner removes it
		x.stopping.Store(true)
		if r := <-x.merged; r.s != nil {
			_ = r.s.file.Close()
		}
		x.stopping.Store(false)
		x.merging = nil
	}
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
