package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// The requests that we encode ourselves, each in one version. Apache Kafka supports them since 2.5,
// except the last two.
const (
	produceKey, produceVersion             = 0, 8
	fetchKey, fetchVersion                 = 1, 11
	listOffsetsKey, listOffsetsVersion     = 2, 4
	metadataKey, metadataVersion           = 3, 8
	offsetFetchKey, offsetFetchVersion     = 9, 7
	heartbeatKey, heartbeatVersion         = 12, 3
	deleteKey, deleteVersion               = 21, 1
	addPartitionsKey, addPartitionsVersion = 24, 1
	addOffsetsKey, addOffsetsVersion       = 25, 1
	endKey, endVersion                     = 26, 1
	commitOffsetsKey, commitOffsetsVersion = 28, 3
	logDirsKey, logDirsVersion             = 35, 1
	producersKey, producersVersion         = 61, 0 // since 2.8
	transactionsKey, transactionsVersion   = 65, 0 // since 3.0
)

// maxFrame limits the length of an answer. A peer that sends a longer answer is broken or hostile.
const maxFrame = 256 << 20

// firstPiece is the largest part of an answer that is allocated before its bytes arrive.
const firstPiece = 4 << 20

// correlationID is the id of every request. Only one request is in flight on a connection,
// so ids need not differ; kafka-go's own requests begin at 1.
const correlationID = 0

// spliceFrom is the size from which a payload is written in place instead of being copied
// into the frame: a system call costs about as much as copying this many bytes.
const spliceFrom = 16 << 10

// Frame is one request in its wire format. Its memory is reused.
type Frame struct {
	Key     int16
	Version int16
	buf     []byte
	splices []splice
	spliced int
	err     error // reason why the frame cannot be written
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
	b = appendInt32(b, correlationID)
	f.buf = b
	f.string(client)
}

// string refuses a text that is too long for its length field, because the rest of the
// frame would be misread.
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

// WriteTo writes the frame, unless a part of it is too long for its length field.
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

// ReadAnswer reads one answer into buf, which grows if needed, and returns the bytes
// after the correlation id.
func ReadAnswer(r io.Reader, buf []byte) ([]byte, error) {
	head := buf[:min(8, cap(buf))]
	if len(head) < 8 {
		head = make([]byte, 8)
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return buf[:0], err
	}
	size := int(int32(binary.BigEndian.Uint32(head))) - 4
	if size < 0 || size > maxFrame {
		return buf[:0], fmt.Errorf("answer of %d bytes: is this a Kafka without TLS, and are we?", size)
	}
	if id := binary.BigEndian.Uint32(head[4:]); id != correlationID {
		return buf[:0], fmt.Errorf("answer to request %d, which is not ours: the connection is out of step", id)
	}
	return readProgressively(r, buf[:0], size)
}

// readProgressively allocates memory as the bytes arrive, so that a hostile size of four
// bytes does not reserve maxFrame.
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

// ProduceHead has the fields that a produce request has once.
type ProduceHead struct {
	Client        string
	Transactional string // transactional id, or empty
	TimeoutMillis int32
	Topics        int
}

// BeginProduce starts a produce request that waits for all in-sync replicas. For each
// topic call Topic, then Batch for each of its partitions; then End.
func (f *Frame) BeginProduce(h ProduceHead) {
	f.begin(produceKey, produceVersion, h.Client)
	if h.Transactional == "" {
		f.buf = appendInt16(f.buf, -1)
	} else {
		f.string(h.Transactional)
	}
	f.buf = appendInt16(f.buf, -1)
	f.buf = appendInt32(f.buf, h.TimeoutMillis)
	f.buf = appendInt32(f.buf, int32(h.Topics))
}

// Topic starts a topic with the given number of partitions.
func (f *Frame) Topic(name string, partitions int) {
	f.string(name)
	f.buf = appendInt32(f.buf, int32(partitions))
}

// Batch adds a partition's batch. The bytes must not change until the frame is written.
func (f *Frame) Batch(partition int32, batch []byte) {
	f.buf = appendInt32(f.buf, partition)
	f.payload(batch)
}

// End closes the frame.
func (f *Frame) End() { f.end() }

// Produced is a partition's part of the answer to a produce request.
type Produced struct {
	Topic      string
	Partition  int32
	Error      int16
	Message    string
	BaseOffset int64
	LogStart   int64
	BadRecords []int32 // positions in the batch, if the broker gives them
}

// ReadProduced calls each for every partition in the answer.
func ReadProduced(answer []byte, each func(Produced)) error {
	c := cursor{b: answer}
	for range c.arrayLength(6) {
		topic := c.copyString()
		for range c.arrayLength(32) {
			p := Produced{Topic: topic, Partition: c.int32(), Error: c.int16(), BaseOffset: c.int64()}
			c.int64() // append time
			p.LogStart = c.int64()
			for range c.arrayLength(6) {
				p.BadRecords = append(p.BadRecords, c.int32())
				c.copyString()
			}
			p.Message = c.copyString()
			if c.err != nil {
				return c.err
			}
			each(p)
		}
	}
	return c.err
}

// FetchHead has the fields that a fetch request has once.
type FetchHead struct {
	Client        string
	MaxWaitMillis int32
	MinBytes      int32
	MaxBytes      int32
	Topics        int
}

// BeginFetch starts a fetch of committed records. For each topic call Topic,
// then From for each of its partitions; then EndFetch.
func (f *Frame) BeginFetch(h FetchHead) {
	f.begin(fetchKey, fetchVersion, h.Client)
	f.buf = appendInt32(f.buf, -1) // replica id of a client
	f.buf = appendInt32(f.buf, h.MaxWaitMillis)
	f.buf = appendInt32(f.buf, h.MinBytes)
	f.buf = appendInt32(f.buf, h.MaxBytes)
	f.buf = append(f.buf, 1)       // read committed
	f.buf = appendInt32(f.buf, 0)  // no fetch session
	f.buf = appendInt32(f.buf, -1) // the final request of a session
	f.buf = appendInt32(f.buf, int32(h.Topics))
}

// From requests a partition's records from an offset on.
func (f *Frame) From(partition int32, offset int64, maxBytes int32) {
	f.buf = appendInt32(f.buf, partition)
	f.buf = appendInt32(f.buf, -1)
	f.buf = appendInt64(f.buf, offset)
	f.buf = appendInt64(f.buf, -1)
	f.buf = appendInt32(f.buf, maxBytes)
}

// EndFetch closes the frame.
func (f *Frame) EndFetch() {
	f.buf = appendInt32(f.buf, 0) // no forgotten topics
	f.buf = appendString(f.buf, "")
	f.end()
}

// Fetched is a partition's part of the answer to a fetch request. Records points into the answer.
type Fetched struct {
	Topic      string
	Partition  int32
	Error      int16
	HighMark   int64
	StableMark int64
	LogStart   int64
	Aborted    []Aborted
	Records    []byte
}

// Aborted is a transaction whose records from First on must be skipped.
type Aborted struct {
	Producer int64
	First    int64
}

// ReadFetched calls each for every partition in the answer, and returns the
// error of the answer as a whole.
func ReadFetched(answer []byte, each func(*Fetched)) (code int16, err error) {
	c := cursor{b: answer}
	c.int32() // throttle time
	code = c.int16()
	c.int32() // fetch session
	var p Fetched
	for range c.arrayLength(6) {
		topic := c.copyString()
		for range c.arrayLength(42) {
			p = Fetched{Topic: topic, Partition: c.int32(), Error: c.int16(), HighMark: c.int64(),
				StableMark: c.int64(), LogStart: c.int64(), Aborted: p.Aborted[:0]}
			for range c.arrayLength(16) {
				p.Aborted = append(p.Aborted, Aborted{Producer: c.int64(), First: c.int64()})
			}
			c.int32() // preferred replica
			p.Records = c.sliceBytes()
			if c.err != nil {
				return code, c.err
			}
			each(&p)
		}
	}
	return code, c.err
}
