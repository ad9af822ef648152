package wire

// LogDir is one disk of a server, with the logs asked for that lie on it.
type LogDir struct {
	Error int16
	Logs  []LogSize
}

// LogSize is the size of one partition's log. A moving one is only on its way
// to that disk.
type LogSize struct {
	TopicPartition
	Bytes  int64
	Moving bool
}

// LogDirs asks a server how large the logs of partitions are on its disks.
func (f *Frame) LogDirs(client string, partitions []TopicPartition) {
	f.begin(logDirsKey, logDirsVersion, client)
	f.buf = appendInt32(f.buf, int32(len(partitions)))
	for _, p := range partitions {
		f.buf = appendString(f.buf, p.Topic)
		f.buf = appendInt32(f.buf, 1)
		f.buf = appendInt32(f.buf, p.Partition)
	}
	f.end()
}

// ReadLogDirs reads the answer to LogDirs. A server that will not tell us
// names no disk.
func ReadLogDirs(answer []byte) ([]LogDir, error) {
	c := cursor{b: answer}
	var all []LogDir
	c.int32() // throttled for
	for range c.count(8) {
		d := LogDir{Error: c.int16()}
		c.string() // path
		for range c.count(6) {
			topic := c.string()
			for range c.count(21) {
				l := LogSize{TopicPartition: TopicPartition{topic, c.int32()}, Bytes: c.int64()}
				c.int64() // how far behind the copy is
				l.Moving = c.int8() != 0
				d.Logs = append(d.Logs, l)
			}
		}
		all = append(all, d)
	}
	return all, c.err
}
