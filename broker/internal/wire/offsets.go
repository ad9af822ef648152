package wire

import "encoding/binary"

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
