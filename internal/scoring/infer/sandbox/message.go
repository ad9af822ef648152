package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// A message is a list of tensors in the memory that both processes share. Each tensor has a header
// of eight-byte words: its type, its number of dimensions, its dimensions, its number of bytes. Then
// come its values, from the next multiple of 64 bytes on. Texts are their lengths, then their bytes.

const word, alignment, mostRank = 8, 64, 64

// errDamaged reports a message that the other process has not written completely, or has changed.
var errDamaged = errors.New("the message is damaged")

// writer writes a message into shared memory.
type writer struct {
	to []byte
	at int
}

func (w *writer) room(n int) ([]byte, error) {
	if n < 0 || n > len(w.to)-w.at {
		return nil, fmt.Errorf("the batch takes more than %d MiB: ask for fewer rows at once", len(w.to)>>20)
	}
	b := w.to[w.at : w.at+n]
	w.at += n
	return b, nil
}

func (w *writer) word(n int) error {
	b, err := w.room(word)
	if err == nil {
		binary.NativeEndian.PutUint64(b, uint64(n))
	}
	return err
}

func (w *writer) align() error {
	_, err := w.room(-w.at & (alignment - 1))
	return err
}

// tensors writes a message.
func (w *writer) tensors(all []tensor.Tensor) error {
	w.at = 0
	if err := w.word(len(all)); err != nil {
		return err
	}
	for i := range all {
		if err := w.tensor(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) tensor(t *tensor.Tensor) error {
	if len(t.Shape) > mostRank {
		return fmt.Errorf("a tensor has %d dimensions, and %d are the most", len(t.Shape), mostRank)
	}
	values := bytesOf(t)
	size := len(values)
	if t.Type == tensor.String {
		size = word * len(t.Strings)
		for _, s := range t.Strings {
			size += len(s)
		}
	}
	for _, n := range [...]int{int(t.Type), len(t.Shape)} {
		if err := w.word(n); err != nil {
			return err
		}
	}
	for _, n := range t.Shape {
		if err := w.word(n); err != nil {
			return err
		}
	}
	for _, n := range [...]int{length(t), size} {
		if err := w.word(n); err != nil {
			return err
		}
	}
	if err := w.align(); err != nil {
		return err
	}
	b, err := w.room(size)
	if err != nil {
		return err
	}
	if t.Type == tensor.String {
		writeTexts(b, t.Strings)
	} else {
		copy(b, values)
	}
	return w.align()
}

func writeTexts(to []byte, texts []string) {
	at := word * len(texts)
	for i, s := range texts {
		binary.NativeEndian.PutUint64(to[word*i:], uint64(len(s)))
		at += copy(to[at:], s)
	}
}

// bytesOf returns a tensor's numbers as bytes.
func bytesOf(t *tensor.Tensor) []byte {
	switch t.Type {
	case tensor.Float:
		return raw(t.Floats)
	case tensor.Double:
		return raw(t.Doubles)
	case tensor.String:
		return nil
	}
	return raw(t.Ints)
}

func raw[T any](values []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(one)))
}

func length(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float:
		return len(t.Floats)
	case tensor.Double:
		return len(t.Doubles)
	case tensor.String:
		return len(t.Strings)
	}
	return len(t.Ints)
}

// reader reads a message. The other process may change the memory at any time, so each number is
// read once and checked before its use.
type reader struct {
	from []byte
	at   int
	// copied makes the reader copy values, and take their bytes from the budget before. Otherwise
	// they point into the memory.
	copied bool
	budget tensor.Budget
}

func (r *reader) bytes(n int) ([]byte, error) {
	if n < 0 || n > len(r.from)-r.at {
		return nil, errDamaged
	}
	b := r.from[r.at : r.at+n : r.at+n]
	r.at += n
	return b, nil
}

func (r *reader) word() (int, error) {
	b, err := r.bytes(word)
	if err != nil {
		return 0, err
	}
	return int(binary.NativeEndian.Uint64(b)), nil
}

// tensors reads a message with as many tensors as there are in to, and reuses their memory.
func (r *reader) tensors(to []tensor.Tensor) error {
	r.at = 0
	n, err := r.word()
	if err != nil || n != len(to) {
		return errDamaged
	}
	for i := range to {
		if err := r.tensor(&to[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) tensor(t *tensor.Tensor) error {
	kind, err := r.word()
	rank, err2 := r.word()
	if err != nil || err2 != nil || rank < 0 || rank > mostRank {
		return errDamaged
	}
	t.Type, t.Shape = tensor.Type(kind), t.Shape[:0]
	for range rank {
		d, err := r.word()
		if err != nil {
			return err
		}
		t.Shape = append(t.Shape, d)
	}
	count, err := r.word()
	size, err2 := r.word()
	if err != nil || err2 != nil || count < 0 || count > len(r.from) {
		return errDamaged
	}
	if _, err = r.bytes(-r.at & (alignment - 1)); err != nil {
		return err
	}
	b, err := r.bytes(size)
	if err != nil {
		return err
	}
	if r.copied && r.budget != nil {
		if err := r.budget.Take(int64(size)); err != nil {
			return err
		}
	}
	if err := r.values(t, count, b); err != nil {
		return err
	}
	_, err = r.bytes(-r.at & (alignment - 1))
	return err
}

func (r *reader) values(t *tensor.Tensor, count int, b []byte) (err error) {
	t.Floats, t.Doubles, t.Ints, t.Strings = t.Floats[:0], t.Doubles[:0], t.Ints[:0], t.Strings[:0]
	switch t.Type {
	case tensor.Float:
		t.Floats, err = numbers(t.Floats, count, b, r.copied)
	case tensor.Double:
		t.Doubles, err = numbers(t.Doubles, count, b, r.copied)
	case tensor.Int32, tensor.Int64, tensor.Bool:
		t.Ints, err = numbers(t.Ints, count, b, r.copied)
	case tensor.String:
		t.Strings, err = texts(t.Strings, count, b)
	default:
		return errDamaged
	}
	return err
}

func numbers[T any](to []T, count int, b []byte, copied bool) ([]T, error) {
	var one T
	if len(b) != count*int(unsafe.Sizeof(one)) {
		return nil, errDamaged
	}
	values := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), count)
	if !copied {
		return values, nil
	}
	return append(to, values...), nil
}

// texts copies texts, because a text must not change later.
func texts(to []string, count int, b []byte) ([]string, error) {
	if count > len(b)/word {
		return nil, errDamaged
	}
	all, at := string(b[word*count:]), 0
	for i := range count {
		n := binary.NativeEndian.Uint64(b[word*i:])
		if n > uint64(len(all)-at) {
			return nil, errDamaged
		}
		to = append(to, all[at:at+int(n)])
		at += int(n)
	}
	return to, nil
}
