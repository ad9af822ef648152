package tidemill

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"

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
	sum := sha256.Sum256(appendParts(make([]byte, 0, 256), parts...))
	return base32.NewEncoding(base32Lower).EncodeToString(sum[:])[:idLength]
}

// appendParts appends each part after its length.
func appendParts(dst []byte, parts ...string) []byte {
	for _, p := range parts {
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(p)))
		dst = append(dst, p...)
	}
	return dst
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
	return sha256.Sum256(appendParts(make([]byte, 0, 256), c.Source, c.ID))
}
