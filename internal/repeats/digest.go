package repeats

import (
	"crypto/sha256"
	"encoding/binary"
)

// digest stands for a source and an id. A digest that two events share would
// lose the second, so it must not be had by chance or by design: of a million
// remembered events a stranger meets one with odds of 1 to 10^32, and whoever
// chooses ids to meet somebody else's event has to try 2^108 of them. Two of
// his own that meet (2^64 tries) lose one of his own. A faster hash would have
// to be keyed, and every gateway would have to share the key and keep it.
type digest [16]byte

// digestOf puts the length before the source, so that ("ab", "c") and
// ("a", "bc") differ. What most events have fits one block of SHA-256.
func digestOf(source, id string) digest {
	var room [256]byte
	b := binary.AppendUvarint(room[:0], uint64(len(source)))
	b = append(b, source...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return digest(sum[:16])
}

// mark says that an event is on the log.
type mark struct {
	digest digest
	at     int64 // milliseconds since 1970
}

// markBytes are a mark's in Redis: its digest, and its time with the big end
// first.
const markBytes = len(digest{}) + 8

func encode(marks []mark) []byte {
	b := make([]byte, 0, len(marks)*markBytes)
	for i := range marks {
		b = append(b, marks[i].digest[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(marks[i].at))
	}
	return b
}

// decode hands out the marks of an entry. What is no mark, because others write
// to the same Redis, is left out.
func decode(text string, each func(mark)) {
	for ; len(text) >= markBytes; text = text[markBytes:] {
		at := binary.BigEndian.Uint64([]byte(text[len(digest{}):markBytes]))
		each(mark{digest([]byte(text[:len(digest{})])), int64(at)})
	}
}
