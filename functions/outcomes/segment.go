package outcomes

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sync/atomic"
)

// A segment is a file of entries, sorted by their hashes, which never changes:
//
//	block…  one block: checksum, then for each entry its hash, its length and its bytes
//	foot    first hash and offset of each block, and the filter
//	tail    length of the foot, its checksum, and a magic number
//
// The foot of a segment stays in memory: about 3 bytes for each entry. The file is not synced: after a loss
// of power the checksums find what is torn, and the entries are read from the logs again.
type segment struct {
	file    *os.File
	path    string
	count   int
	newest  int64    // newest time of an entry's member
	firsts  []uint64 // first 8 bytes of the first hash of each block
	offsets []int64  // offset of each block, and the end of the last one
	filter  filter
	block   []byte // the block that was read last
}

const (
	blockBytes   = 4 << 10
	tailBytes    = 16
	segmentMagic = 0x7469646d696c6c31
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // read-only

// filter is a Bloom filter whose bits for one hash are in one line of the CPU's cache. About one in
// 500 of the hashes that are not in the segment passes it.
type filter []uint64

const (
	lineWords  = 8
	filterBits = 7
)

func newFilter(count int) filter {
	return make(filter, lineWords*max(1, (count*16+511)/512))
}

func (f filter) line(h *hash) []uint64 {
	lines := uint64(len(f) / lineWords)
	at := binary.LittleEndian.Uint64(h[8:]) % lines * lineWords
	return f[at : at+lineWords]
}

func (f filter) add(h *hash) {
	line, bits := f.line(h), binary.LittleEndian.Uint64(h[:])
	for range filterBits {
		line[bits>>6&7] |= 1 << (bits & 63)
		bits >>= 9
	}
}

func (f filter) has(h *hash) bool {
	line, bits := f.line(h), binary.LittleEndian.Uint64(h[:])
	for range filterBits {
		if line[bits>>6&7]&(1<<(bits&63)) == 0 {
			return false
		}
		bits >>= 9
	}
	return true
}

func prefix(h *hash) uint64 { return binary.BigEndian.Uint64(h[:]) }

// segmentWriter writes a segment. Its entries are added in the order of their hashes.
type segmentWriter struct {
	s      *segment
	w      *bufio.Writer
	block  []byte
	offset int64
}

// createSegment begins a segment of at most count entries.
func createSegment(path string, count int) (*segmentWriter, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &segmentWriter{s: &segment{file: file, path: path, filter: newFilter(count)}, w: bufio.NewWriterSize(file, 1<<20), block: make([]byte, 4, 2*blockBytes)}, nil
}

func (w *segmentWriter) add(h *hash, value []byte) error {
	s := w.s
	if len(w.block) == 4 {
		s.firsts, s.offsets = append(s.firsts, prefix(h)), append(s.offsets, w.offset)
	}
	w.block = append(append(w.block, h[:]...), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(w.block[len(w.block)-4:], uint32(len(value)))
	w.block = append(w.block, value...)
	s.filter.add(h)
	s.count++
	s.newest = max(s.newest, newestIn(value))
	if len(w.block) >= blockBytes {
		return w.flush()
	}
	return nil
}

func (w *segmentWriter) flush() error {
	binary.LittleEndian.PutUint32(w.block, crc32.Checksum(w.block[4:], castagnoli))
	w.offset += int64(len(w.block))
	_, err := w.w.Write(w.block)
	w.block = w.block[:4]
	return err
}

// finish ends the segment. A failed one is closed.
func (w *segmentWriter) finish(err error) (*segment, error) {
	if err == nil && len(w.block) > 4 {
		err = w.flush()
	}
	w.s.offsets = append(w.s.offsets, w.offset)
	if err == nil {
		err = w.s.writeFoot(w.w)
	}
	if err == nil {
		err = w.w.Flush()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", w.s.path, err), w.s.file.Close())
	}
	return w.s, nil
}

// writeSegment writes the entries of a table.
func writeSegment(path string, t *table) (*segment, error) {
	w, err := createSegment(path, len(t.at))
	if err != nil {
		return nil, err
	}
	hashes := make([]hash, 0, len(t.at))
	for h := range t.at {
		hashes = append(hashes, h)
	}
	slices.SortFunc(hashes, func(a, b hash) int { return bytes.Compare(a[:], b[:]) })
	for i := range hashes {
		if err = w.add(&hashes[i], t.get(t.at[hashes[i]])); err != nil {
			break
		}
	}
	return w.finish(err)
}

// mergeSegments writes the entries of some segments into one, the newest of each, without those whose members are all
// older than a time. stop ends it early.
func mergeSegments(path string, from []*segment, before int64, stop *atomic.Bool) (*segment, error) {
	count := 0
	all := make([]cursor, len(from))
	var failed error
	for i, s := range from {
		count += s.count
		all[i].s = s
		failed = errors.Join(failed, all[i].next())
	}
	w, err := createSegment(path, count)
	if err != nil {
		return nil, err
	}
	for failed == nil {
		least := -1
		for i := range all { // of equal hashes the last one is of the newest segment
			if !all[i].ended && (least < 0 || bytes.Compare(all[i].hash, all[least].hash) <= 0) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		h := hash(all[least].hash)
		if newestIn(all[least].value) >= before {
			failed = w.add(&h, all[least].value)
		}
		for i := range all {
			for failed == nil && !all[i].ended && bytes.Equal(all[i].hash, h[:]) {
				failed = all[i].next()
			}
		}
		if stop.Load() {
			failed = errStopped
		}
	}
	return w.finish(failed)
}

var errStopped = errors.New("stopped")

// cursor reads the entries of a segment in their order.
type cursor struct {
	s           *segment
	block       int
	memory      []byte
	rest        []byte
	hash, value []byte
	ended       bool
}

func (c *cursor) next() (err error) {
	if len(c.rest) < 20 {
		if c.ended = c.block == len(c.s.firsts); c.ended {
			return nil
		}
		if c.memory, err = c.s.read(c.block, c.memory); err != nil {
			return fmt.Errorf("read %s: %w", c.s.path, err)
		}
		c.rest = c.memory[4:]
		c.block++
	}
	n := int(binary.LittleEndian.Uint32(c.rest[16:]))
	if n > len(c.rest)-20 {
		return errSegment
	}
	c.hash = append(c.hash[:0], c.rest[:16]...)
	c.value, c.rest = c.rest[20:20+n], c.rest[20+n:]
	return nil
}

func (s *segment) writeFoot(w *bufio.Writer) error {
	foot := binary.LittleEndian.AppendUint64(nil, uint64(s.count))
	foot = binary.LittleEndian.AppendUint64(foot, uint64(s.newest))
	foot = binary.LittleEndian.AppendUint64(foot, uint64(len(s.firsts)))
	for _, x := range s.firsts {
		foot = binary.LittleEndian.AppendUint64(foot, x)
	}
	for _, x := range s.offsets {
		foot = binary.LittleEndian.AppendUint64(foot, uint64(x))
	}
	for _, x := range s.filter {
		foot = binary.LittleEndian.AppendUint64(foot, x)
	}
	tail := binary.LittleEndian.AppendUint32(nil, uint32(len(foot)))
	tail = binary.LittleEndian.AppendUint32(tail, crc32.Checksum(foot, castagnoli))
	tail = binary.LittleEndian.AppendUint64(tail, segmentMagic)
	_, err := w.Write(append(foot, tail...))
	return err
}

var errSegment = errors.New("the file is torn or damaged")

// openSegment reads the foot of a file.
func openSegment(path string) (_ *segment, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &segment{file: file, path: path}
	if err := s.readFoot(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), file.Close())
	}
	return s, nil
}

func (s *segment) readFoot() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	tail := make([]byte, tailBytes)
	if size < tailBytes {
		return errSegment
	}
	if _, err := s.file.ReadAt(tail, size-tailBytes); err != nil {
		return err
	}
	length := int64(binary.LittleEndian.Uint32(tail))
	if binary.LittleEndian.Uint64(tail[8:]) != segmentMagic || length < 24 || length > size-tailBytes {
		return errSegment
	}
	foot := make([]byte, length)
	if _, err := s.file.ReadAt(foot, size-tailBytes-length); err != nil {
		return err
	}
	if crc32.Checksum(foot, castagnoli) != binary.LittleEndian.Uint32(tail[4:]) {
		return errSegment
	}
	words := make([]uint64, len(foot)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(foot[8*i:])
	}
	s.count, s.newest = int(words[0]), int64(words[1])
	blocks := int(words[2])
	words = words[3:]
	s.firsts, words = words[:blocks:blocks], words[blocks:]
	for _, x := range words[:blocks+1] {
		s.offsets = append(s.offsets, int64(x))
	}
	s.filter = filter(words[blocks+1:])
	return nil
}

// get returns the bytes of an entry, which are valid until the next call; nil if it is not here.
func (s *segment) get(h *hash) ([]byte, error) {
	if len(s.firsts) == 0 || !s.filter.has(h) {
		return nil, nil
	}
	at, found := slices.BinarySearchFunc(s.firsts, prefix(h), func(a, b uint64) int { return cmp.Compare(a, b) })
	if !found {
		at--
	}
	if at < 0 {
		return nil, nil
	}
	var err error
	if s.block, err = s.read(at, s.block); err != nil {
		return nil, fmt.Errorf("read %s: %w", s.path, err)
	}
	for b := s.block[4:]; len(b) >= 20; {
		n := int(binary.LittleEndian.Uint32(b[16:]))
		if n > len(b)-20 {
			break
		}
		if bytes.Equal(b[:16], h[:]) {
			return b[20 : 20+n], nil
		}
		b = b[20+n:]
	}
	return nil, nil
}

// read reads a block into memory, which it returns.
func (s *segment) read(block int, memory []byte) ([]byte, error) {
	from, n := s.offsets[block], int(s.offsets[block+1]-s.offsets[block])
	memory = slices.Grow(memory[:0], n)[:n]
	if _, err := s.file.ReadAt(memory, from); errors.Is(err, io.EOF) {
		return memory, errSegment
	} else if err != nil {
		return memory, err
	}
	if n < 4 || crc32.Checksum(memory[4:], castagnoli) != binary.LittleEndian.Uint32(memory) {
		return memory, errSegment
	}
	return memory, nil
}
