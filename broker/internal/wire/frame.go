package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// The requests we encode ourselves, with the one version of each that we
// speak. All are in Apache Kafka since 2.5.
const (
	produceKey, produceVersion         = 0, 8
	fetchKey, fetchVersion             = 1, 11
	listOffsetsKey, listOffsetsVersion = 2, 4
	metadataKey, metadataVersion       = 3, 8
	offsetFetchKey, offsetFetchVersion = 9, 7
	heartbeatKey, heartbeatVersion     = 12, 3
	logDirsKey, logDirsVersion         = 35, 1
)

// maxFrame bounds an answer; a longer one is a broken or hostile peer.
const maxFrame = 256 << 20

// firstPiece is what an answer's announced size is believed at once.
const firstPiece = 4 << 20

// correlation numbers every request: only one is in flight on a connection, so
// it need not tell them apart, but kafka-go's own requests begin at 1.
const correlation = 0

// spliceFrom is the size from which a payload is written from where it lies
// instead of being copied into the frame: a system call costs about as much as
// copying this.
const spliceFrom = 16 << 10

// Frame is one request as it goes over the wire. Its memory is reused.
type Frame struct {
	Key     int16
	Version int16
	buf     []byte
	splices []splice
	spliced int
	err     error // why the frame cannot be written
}

type splice struct {
	at      int
	payload []byte
}

func (f *Frame) begin(key, version int16, client string) {
	f.Key, f.Version = key, version
	f.splices, f.spliced, f.err = f.splices[:0], 0, nil
	b := append(f.buf[:0], 0, 0, 0, 0)
	b = appendInt16(b, key)
	b = appendInt16(b, version)
	b = appendInt32(b, correlation)
	f.buf = b
	f.string(client)
}

// string refuses what its length field cannot say: the rest of the frame would
// be read as something else.
func (f *Frame) string(s string) {
	if len(s) > math.MaxInt16 {
		f.err = fmt.Errorf("write a request with a name of %d bytes: Kafka allows %d", len(s), math.MaxInt16)
		return
	}
	f.buf = appendString(f.buf, s)
}

func (f *Frame) payload(p []byte) {
	f.buf = appendInt32(f.buf, int32(len(p)))
	if len(p) < spliceFrom {
		f.buf = append(f.buf, p...)
		return
	}
	f.splices = append(f.splices, splice{len(f.buf), p})
	f.spliced += len(p)
}

func (f *Frame) end() {
	size := len(f.buf) - 4 + f.spliced
	if size > math.MaxInt32 {
		f.err = fmt.Errorf("write a request of %d bytes: Kafka allows %d", size, math.MaxInt32)
	}
	binary.BigEndian.PutUint32(f.buf, uint32(size))
}

// WriteTo writes the frame, unless something in it is too long to be said.
func (f *Frame) WriteTo(w io.Writer) (int64, error) {
	if f.err != nil {
		return 0, f.err
	}
	var total int64
	write := func(p []byte) error {
		n, err := w.Write(p)
		total += int64(n)
		return err
	}
	from := 0
	for _, s := range f.splices {
		if err := write(f.buf[from:s.at]); err != nil {
			return total, err
		}
		if err := write(s.payload); err != nil {
			return total, err
		}
		from = s.at
	}
	if from == len(f.buf) {
		return total, nil
	}
	return total, write(f.buf[from:])
}

// ReadAnswer reads one answer into buf, grown if need be, and returns what
// follows the correlation id.
func ReadAnswer(r io.Reader, buf []byte) ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buf[:0], err
	}
	size := int(int32(binary.BigEndian.Uint32(head[:]))) - 4
	if size < 0 || size > maxFrame {
		return buf[:0], fmt.Errorf("answer of %d bytes: is this a Kafka without TLS, and are we?", size)
	}
	if id := binary.BigEndian.Uint32(head[4:]); id != correlation {
		return buf[:0], fmt.Errorf("answer to request %d, which is not ours: the connection is out of step", id)
	}
	return readProgressively(r, buf[:0], size)
}

// readProgressively allocates as the bytes arrive, so that four hostile ones
// do not reserve maxFrame.
func readProgressively(r io.Reader, buf []byte, size int) ([]byte, error) {
	for len(buf) < size {
		if len(buf) == cap(buf) {
			buf = resize(buf, min(max(2*cap(buf), firstPiece), size))
		}
		n, err := io.ReadFull(r, buf[len(buf):min(cap(buf), size)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}
