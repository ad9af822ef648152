package wire

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Metadata has the brokers, and the leaders of the requested topics.
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

// leaderNotAvailable is Kafka's error for a topic that is still being created.
const leaderNotAvailable = 5

// PartitionMetadata has one partition's leader and replicas.
type PartitionMetadata struct {
	Error    int16
	Index    int32
	Leader   int32
	Replicas []int32
	InSync   []int32
}

// Metadata requests the leaders of topics; no topics means all.
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
	c.int32() // throttle time
	for range c.arrayLength(12) {
		m.Brokers = append(m.Brokers, BrokerNode{ID: c.int32(), Host: c.copyString(), Port: c.int32()})
		c.copyString() // rack
		if c.err != nil {
			return nil, c.err
		}
	}
	m.Cluster = c.copyString()
	m.Controller = c.int32()
	for range c.arrayLength(13) {
		t := TopicMetadata{Error: c.int16(), Name: c.copyString(), Internal: c.int8() != 0}
		for range c.arrayLength(26) {
			p := PartitionMetadata{Error: c.int16(), Index: c.int32(), Leader: c.int32()}
			c.int32() // leader epoch
			p.Replicas = c.int32s()
			p.InSync = c.int32s()
			c.int32s() // offline replicas
			t.Partitions = append(t.Partitions, p)
		}
		c.int32() // authorized operations
		if c.err != nil {
			return nil, c.err
		}
		t.sortPartitions()
		m.Topics = append(m.Topics, t)
	}
	return m, c.err
}

// Topics are the ids of topics, from a metadata request.
type Topics struct {
	Cluster string
	IDs     map[string][16]byte // by name; without the topics that have an error
	Nodes   []int32
}

// TopicIDsVersion is the version of the metadata request that has the ids of topics. Apache Kafka has it
// since 2.8.
const TopicIDsVersion = 10

// TopicIDs requests the ids of topics. A topic that is deleted and created again has another id.
func (f *Frame) TopicIDs(client string, topics []string) {
	f.begin(metadataKey, TopicIDsVersion, client)
	b := append(f.buf, 0) // no tags: this version is flexible
	b = binary.AppendUvarint(b, uint64(len(topics))+1)
	for _, t := range topics {
		b = append(b, make([]byte, 16)...) // the topic is named, so it has no id here
		b = appendCompactString(b, t)
		b = append(b, 0)
	}
	f.buf = append(b, 0, 0, 0, 0) // create nothing, list no operations, no tags
	f.end()
}

// ReadTopicIDs reads the answer to TopicIDs.
func ReadTopicIDs(answer []byte) (Topics, error) {
	c := cursor{b: answer}
	all := Topics{IDs: map[string][16]byte{}}
	c.skipTags()
	c.int32() // throttle time
	for range c.compactCount(11) {
		all.Nodes = append(all.Nodes, c.int32())
		c.compactString() // host
		c.int32()         // port
		c.compactString() // rack
		c.skipTags()
	}
	all.Cluster = c.compactString()
	c.int32() // controller
	for range c.compactCount(26) {
		failed, name := c.int16() != 0, c.compactString()
		var id [16]byte
		copy(id[:], c.take(16))
		if !failed && c.err == nil {
			all.IDs[name] = id
		}
		c.int8() // whether it is internal
		for range c.compactCount(18) {
			c.take(14)    // error, number, leader, leader epoch
			for range 3 { // replicas
				c.take(4 * c.compactCount(4))
			}
			c.skipTags()
		}
		c.int32() // authorized operations
		c.skipTags()
	}
	c.int32() // authorized operations of the cluster
	c.skipTags()
	return all, c.err
}

// sortPartitions sorts the partitions. If one is missing or duplicated, positions would not match
// partition numbers and a key would change its partition. Such a topic gets
// leaderNotAvailable, so that the client asks again.
func (t *TopicMetadata) sortPartitions() {
	slices.SortFunc(t.Partitions, func(a, b PartitionMetadata) int { return cmp.Compare(a.Index, b.Index) })
	for i := range t.Partitions {
		if t.Partitions[i].Index != int32(i) && t.Error == 0 {
			t.Error = leaderNotAvailable
		}
	}
}

// Special times for which ListOffsets returns an end of the log.
const (
	Latest   = -1
	Earliest = -2
)

// TopicPartition names one partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// OffsetQuery requests the first offset at or after a time in milliseconds, or an end of the log.
type OffsetQuery struct {
	TopicPartition
	Time int64
}

// OffsetAnswer is the answer to one OffsetQuery; the offset is -1 if no record is that young.
type OffsetAnswer struct {
	TopicPartition
	Error  int16
	Offset int64
}

// ListOffsets requests offsets from the leader of the partitions. With committed, the
// latest offset is the one where a reader of committed records would stop.
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
	c.int32() // throttle time
	for range c.arrayLength(6) {
		topic := c.copyString()
		for range c.arrayLength(26) {
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

// CommittedOffset is a group's committed offset of a partition; -1 if there is none.
type CommittedOffset struct {
	TopicPartition
	Offset   int64
	Metadata string
	Error    int16
}

// OffsetFetch requests committed offsets from a group's coordinator. With stable the
// coordinator refuses to answer for a partition while an open transaction may move its
// offset: a reader that starts at the older offset would repeat work. Observers do not
// need stable. No partitions means all.
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
	c.int32() // throttle time
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

// Heartbeat tells a group's coordinator that a member is alive. kafka-go has the fields
// of the answer in the wrong order and never sees an error: its member would learn
// neither of a rebalance nor of its expulsion.
func (f *Frame) Heartbeat(client, group string, generation int32, member string) {
	f.begin(heartbeatKey, heartbeatVersion, client)
	b := appendString(f.buf, group)
	b = appendInt32(b, generation)
	b = appendString(b, member)
	f.buf = appendInt16(b, -1) // no static member
	f.end()
}

// DeleteRecords deletes the records of partitions below the given offsets. The leader answers when
// all replicas have done so, or after the time in milliseconds.
func (f *Frame) DeleteRecords(client string, below map[TopicPartition]int64, millis int32) {
	f.begin(deleteKey, deleteVersion, client)
	f.buf = appendInt32(f.buf, int32(len(below)))
	for p, offset := range below {
		f.string(p.Topic)
		f.buf = appendInt32(f.buf, 1)
		f.buf = appendInt32(f.buf, p.Partition)
		f.buf = appendInt64(f.buf, offset)
	}
	f.buf = appendInt32(f.buf, millis)
	f.end()
}

// ReadDeleteRecords reads the answer to DeleteRecords: the error of each partition, and the offset at
// which its log begins.
func ReadDeleteRecords(answer []byte) ([]OffsetAnswer, error) {
	c := cursor{b: answer}
	var all []OffsetAnswer
	c.int32() // throttle time
	for range c.arrayLength(6) {
		topic := c.copyString()
		for range c.arrayLength(14) {
			a := OffsetAnswer{TopicPartition: TopicPartition{topic, c.int32()}, Offset: c.int64(), Error: c.int16()}
			if c.err != nil {
				return nil, c.err
			}
			all = append(all, a)
		}
	}
	return all, c.err
}

// LogDir is one disk of a server, with the requested logs on it.
type LogDir struct {
	Error int16
	Logs  []LogSize
}

// LogSize is the size of one partition's log. A moving log is still being copied to that disk.
type LogSize struct {
	TopicPartition
	Bytes  int64
	Moving bool
}

// LogDirs requests the sizes of partitions' logs on a server's disks.
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

// ReadLogDirs reads the answer to LogDirs. A server that denies access lists no disk.
func ReadLogDirs(answer []byte) ([]LogDir, error) {
	c := cursor{b: answer}
	var all []LogDir
	c.int32() // throttle time
	for range c.arrayLength(8) {
		d := LogDir{Error: c.int16()}
		c.copyString() // path
		for range c.arrayLength(6) {
			topic := c.copyString()
			for range c.arrayLength(21) {
				l := LogSize{TopicPartition: TopicPartition{topic, c.int32()}, Bytes: c.int64()}
				c.int64() // lag of the copy
				l.Moving = c.int8() != 0
				d.Logs = append(d.Logs, l)
			}
		}
		all = append(all, d)
	}
	return all, c.err
}
