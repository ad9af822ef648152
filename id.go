package tidemill

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"io"

	"github.com/cloudevents/sdk-go/v2/event"
)

// idLength is the length of every id. It has 130 bits, so two ids are never equal by
// accident, and it fits a DNS label.
const idLength = 26

const base32Lower = "abcdefghijklmnopqrstuvwxyz234567"

// ID derives an id from parts: base32 of SHA-256 over the parts. Each part follows its
// length, so ("ab", "c") and ("a", "bc") differ. The same parts give the same id for
// ever, on any machine, so a repeated step names the same event.
func ID(parts ...string) string {
	h := sha256.New()
	writeParts(h, parts)
	sum := h.Sum(nil)
	return base32.NewEncoding(base32Lower).EncodeToString(sum)[:idLength]
}

// writeParts writes each part after its length. A hash never fails to write.
func writeParts(w io.Writer, parts []string) {
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		w.Write(length[:])
		io.WriteString(w, p)
	}
}

// Cause names an event that causes another event or a run. CloudEvents makes the pair of
// source and id unique, and our consumers recognise a repeated event by it.
type Cause struct {
	Source string `json:"source"`
	ID     string `json:"id"`
}

// CauseOf returns the event as a cause.
func CauseOf(e event.Event) Cause { return Cause{Source: e.Source(), ID: e.ID()} }

// Derive returns the id of the cause's effect for a purpose. One cause has one effect for
// each purpose, however often it is delivered.
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
