package wire

// ProduceHead is what a produce request says once.
type ProduceHead struct {
	Client        string
	Transactional string // transactional id, or empty
	TimeoutMillis int32
	Topics        int
}

// BeginProduce starts a produce request that waits for all in-sync replicas.
// For each topic call Topic, then Batch for each of its partitions; then End.
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

// Topic starts a topic of so many partitions.
func (f *Frame) Topic(name string, partitions int) {
	f.string(name)
	f.buf = appendInt32(f.buf, int32(partitions))
}

// Batch adds a partition's batch. The bytes must not change until the frame is
// written.
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
	BadRecords []int32 // places in the batch, where the broker names them
}

// ReadProduced calls each for every partition in the answer.
func ReadProduced(answer []byte, each func(Produced)) error {
	c := cursor{b: answer}
	for range c.count(6) {
		topic := c.string()
		for range c.count(32) {
			p := Produced{Topic: topic, Partition: c.int32(), Error: c.int16(), BaseOffset: c.int64()}
			c.int64() // append time
			p.LogStart = c.int64()
			for range c.count(6) {
				p.BadRecords = append(p.BadRecords, c.int32())
				c.string()
			}
			p.Message = c.string()
			if c.err != nil {
				return c.err
			}
			each(p)
		}
	}
	return c.err
}
