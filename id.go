package tidemill

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"io"

	"github.com/cloudevents/sdk-go/v2/event"
)

// idLength is the length of every id: 130 bits, which are beyond accident and
// fit a DNS label.
const idLength = 26

const base32Lower = "abcdefghijklmnopqrstuvwxyz234567"

// ID derives an id from what it stands for: base32 of SHA-256 over the parts,
// each behind its length, so that ("ab", "c") and ("a", "bc") differ. The same
// parts give the same id for ever, on any machine: whoever repeats a step
// names the same event.
func ID(parts ...string) string {
	h := sha256.New()
	writeParts(h, parts)
	sum := h.Sum(nil)
	return base32.NewEncoding(base32Lower).EncodeToString(sum)[:idLength]
}

// writeParts writes each part behind its length. A hash never fails to write.
func writeParts(w io.Writer, parts []string) {
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		w.Write(length[:])
		io.WriteString(w, p)
	}
}

// Cause is the event that something follows from. CloudEvents makes the pair
// of source and id unique; every consumer of ours is idempotent by it.
type Cause struct {
	Source string `json:"source"`
	ID     string `json:"id"`
}

// CauseOf is the event as a cause.
func CauseOf(e event.Event) Cause { return Cause{Source: e.Source(), ID: e.ID()} }

// Derive is the id of what follows from the cause for a purpose. One cause has
// one effect for each purpose, however often it is delivered.
func (c Cause) Derive(purpose ...string) string {
	return ID(append([]string{c.Source, c.ID}, purpose...)...)
}

// Digest returns SHA-256 over the cause's source and id. Its first bytes are enough to
// tell the causes of one run apart.
func (c Cause) Digest() [sha256.Size]byte {
	h := sha256.New()
	writeParts(h, []string{c.Source, c.ID})
	return [sha256.Size]byte(h.Sum(nil))
}
