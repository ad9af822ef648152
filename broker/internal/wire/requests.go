package wire

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Metadata is where the topics asked for live.
type Metadata struct {
	Brokers    []BrokerNode
	Cluster    string
	Controller int32
	Topics     []TopicMetadata
}

// BrokerNode is one Kafka server.
type BrokerNode struct {
	ID   int32
	Host string
	Port int32
}

// TopicMetadata is one topic and its partitions, in order of their number.
type TopicMetadata struct {
	Name       string
	Error      int16
	Internal   bool
	Partitions []PartitionMetadata
}

// leaderNotAvailable is Kafka's error for a topic that is not settled yet.
const leaderNotAvailable = 5

// PartitionMetadata is one partition's leader and copies.
type PartitionMetadata struct {
	Error    int16
	Index    int32
	Leader   int32
	Replicas []int32
	InSync   []int32
}

// Metadata asks where topics live; no topics asks for all.
func (f *Frame) Metadata(client string, topics []string) {
	f.begin(metadataKey, metadataVersion, client)
	if len(topics) == 0 {
		f.buf = appendInt32(f.buf, -1)
	} else {
		f.buf = appendInt32(f.buf, int32(len(topics)))
	}
	for _, t := range topics {
		f.string(t)
	}
	f.buf = append(f.buf, 0, 0, 0) // create nothing, list no operations
	f.end()
}

// ReadMetadata reads the answer to Metadata.
func ReadMetadata(answer []byte) (*Metadata, error) {
	c := cursor{b: answer}
	m := &Metadata{}
	c.int32() // throttled for
	for range c.count(12) {
		m.Brokers = append(m.Brokers, BrokerNode{ID: c.int32(), Host: c.string(), Port: c.int32()})
		c.string() // rack
		if c.err != nil {
			return nil, c.err
		}
	}
	m.Cluster = c.string()
	m.Controller = c.int32()
	for range c.count(13) {
		t := TopicMetadata{Error: c.int16(), Name: c.string(), Internal: c.int8() != 0}
		for range c.count(26) {
			p := PartitionMetadata{Error: c.int16(), Index: c.int32(), Leader: c.int32()}
			c.int32() // leader epoch
			p.Replicas = c.int32s()
			p.InSync = c.int32s()
			c.int32s() // offline
			t.Partitions = append(t.Partitions, p)
		}
		c.int32() // operations
		if c.err != nil {
			return nil, c.err
		}
		t.settle()
		m.Topics = append(m.Topics, t)
	}
	return m, c.err
}

// settle puts the partitions in order. With one missing or twice, the next
// would be taken for it and a key would change its partition: such a topic is
// one to ask for again.
func (t *TopicMetadata) settle() {
	slices.SortFunc(t.Partitions, func(a, b PartitionMetadata) int { return cmp.Compare(a.Index, b.Index) })
	for i := range t.Partitions {
		if t.Partitions[i].Index != int32(i) && t.Error == 0 {
			t.Error = leaderNotAvailable
		}
	}
}

// Special times for which ListOffsets answers with the log's ends.
const (
	Latest   = -1
	Earliest = -2
)

// TopicPartition names one partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// OffsetQuery asks for the first offset at or after a time in milliseconds, or
// for an end of the log.
type OffsetQuery struct {
	TopicPartition
	Time int64
}

// OffsetAnswer is the answer to one OffsetQuery; the offset is -1 where no
// record is that young.
type OffsetAnswer struct {
	TopicPartition
	Error  int16
	Offset int64
}

// ListOffsets asks a leader for offsets of partitions it leads. With committed
// the latest offset is where a reader of committed records would stop.
func (f *Frame) ListOffsets(client string, queries []OffsetQuery, committed bool) {
	f.begin(listOffsetsKey, listOffsetsVersion, client)
	f.buf = appendInt32(f.buf, -1)
	f.buf = append(f.buf, flag(committed))
	f.buf = appendInt32(f.buf, int32(len(queries)))
	for _, q := range queries {
		f.string(q.Topic)
		f.buf = appendInt32(f.buf, 1)
		f.buf = appendInt32(f.buf, q.Partition)
		f.buf = appendInt32(f.buf, -1)
		f.buf = appendInt64(f.buf, q.Time)
	}
	f.end()
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// ReadOffsets reads the answer to ListOffsets.
func ReadOffsets(answer []byte) ([]OffsetAnswer, error) {
	c := cursor{b: answer}
	var all []OffsetAnswer
	c.int32() // throttled for
	for range c.count(6) {
		topic := c.string()
		for range c.count(26) {
			a := OffsetAnswer{TopicPartition: TopicPartition{topic, c.int32()}, Error: c.int16()}
			c.int64() // time
			a.Offset = c.int64()
			c.int32() // leader epoch
			if c.err != nil {
				return nil, c.err
			}
			all = append(all, a)
		}
	}
	return all, c.err
}

// CommittedOffset is what a group has committed for a partition; the offset is
// -1 where it has committed nothing.
type CommittedOffset struct {
	TopicPartition
	Offset   int64
	Metadata string
	Error    int16
}

// OffsetFetch asks a group's coordinator for committed offsets. With stable it
// is to refuse an answer for a partition while a transaction that may move its
// offset is open: for a reader an offset from before it would be work done
// twice. Who only looks takes what there is. No partitions asks for all.
func (f *Frame) OffsetFetch(client, group string, partitions []TopicPartition, stable bool) {
	f.begin(offsetFetchKey, offsetFetchVersion, client)
	b := append(f.buf, 0) // no tags: this version is flexible
	b = appendCompactString(b, group)
	if len(partitions) == 0 {
		b = append(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(partitions))+1)
	}
	for _, p := range partitions {
		b = appendCompactString(b, p.Topic)
		b = binary.AppendUvarint(b, 2)
		b = appendInt32(b, p.Partition)
		b = append(b, 0)
	}
	f.buf = append(b, flag(stable), 0)
	f.end()
}

// ReadOffsetFetch reads the answer to OffsetFetch.
func ReadOffsetFetch(answer []byte) (all []CommittedOffset, code int16, err error) {
	c := cursor{b: answer}
	c.skipTags()
	c.int32() // throttled for
	for range c.compactCount(3) {
		topic := c.compactString()
		for range c.compactCount(19) {
			p := CommittedOffset{TopicPartition: TopicPartition{topic, c.int32()}, Offset: c.int64()}
			c.int32() // leader epoch
			p.Metadata = c.compactString()
			p.Error = c.int16()
			c.skipTags()
			if c.err != nil {
				return nil, 0, c.err
			}
			all = append(all, p)
		}
		c.skipTags()
	}
	code = c.int16()
	c.skipTags()
	return all, code, c.err
}

// Heartbeat tells a group's coordinator that a member lives. kafka-go has the
// fields of the answer in the wrong order, so that it never sees an error: its
// member would neither learn of a rebalance nor that it has been forgotten.
func (f *Frame) Heartbeat(client, group string, generation int32, member string) {
	f.begin(heartbeatKey, heartbeatVersion, client)
	b := appendString(f.buf, group)
	b = appendInt32(b, generation)
	b = appendString(b, member)
	f.buf = appendInt16(b, -1) // no static member
	f.end()
}

// ReadHeartbeat reads the answer to Heartbeat.
func ReadHeartbeat(answer []byte) (code int16, err error) {
	c := cursor{b: answer}
	c.int32() // throttled for
	code = c.int16()
	return code, c.err
}

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
