package wire

// FetchHead is what a fetch request says once.
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
	f.buf = appendInt32(f.buf, -1) // no replica
	f.buf = appendInt32(f.buf, h.MaxWaitMillis)
	f.buf = appendInt32(f.buf, h.MinBytes)
	f.buf = appendInt32(f.buf, h.MaxBytes)
	f.buf = append(f.buf, 1)       // read committed
	f.buf = appendInt32(f.buf, 0)  // no fetch session
	f.buf = appendInt32(f.buf, -1) // of which this is the final request
	f.buf = appendInt32(f.buf, int32(h.Topics))
}

// From asks for a partition's records from an offset on.
func (f *Frame) From(partition int32, offset int64, maxBytes int32) {
	f.buf = appendInt32(f.buf, partition)
	f.buf = appendInt32(f.buf, -1)
	f.buf = appendInt64(f.buf, offset)
	f.buf = appendInt64(f.buf, -1)
	f.buf = appendInt32(f.buf, maxBytes)
}

// EndFetch closes the frame.
func (f *Frame) EndFetch() {
	f.buf = appendInt32(f.buf, 0) // nothing forgotten
	f.buf = appendString(f.buf, "")
	f.end()
}

// Fetched is a partition's part of the answer to a fetch request. Records
// points into the answer.
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

// Aborted is a transaction whose records from First on must not be shown.
type Aborted struct {
	Producer int64
	First    int64
}

// ReadFetched calls each for every partition in the answer, and returns the
// error of the answer as a whole.
func ReadFetched(answer []byte, each func(*Fetched)) (code int16, err error) {
	c := cursor{b: answer}
	c.int32() // throttled for
	code = c.int16()
	c.int32() // session
	var p Fetched
	for range c.count(6) {
		topic := c.string()
		for range c.count(42) {
			p = Fetched{Topic: topic, Partition: c.int32(), Error: c.int16(), HighMark: c.int64(),
				StableMark: c.int64(), LogStart: c.int64(), Aborted: p.Aborted[:0]}
			for range c.count(16) {
				p.Aborted = append(p.Aborted, Aborted{Producer: c.int64(), First: c.int64()})
			}
			c.int32() // preferred replica
			p.Records = c.bytes()
			if c.err != nil {
				return code, c.err
			}
			each(&p)
		}
	}
	return code, c.err
}
