// Package wire speaks the parts of Kafka's protocol that the hot path needs:
// record batches of format v2 and the frames that carry them. It does no I/O
// and trusts no byte it is given.
package wire

// Header is one header of a record. On the read path both sides point into the
// fetched bytes.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Record is one record of a batch. A nil Key or Value is Kafka's null, an
// empty one is zero bytes. On the read path everything points into the fetched
// bytes and is valid as long as they are.
type Record struct {
	Offset  int64
	Time    int64 // milliseconds since 1970
	Key     []byte
	Value   []byte
	Headers []Header
}
