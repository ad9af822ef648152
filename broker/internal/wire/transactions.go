package wire

import "encoding/binary"

// The requests of a transaction. A small transaction is four of them, and kafka-go's encoding of these would
// allocate more than all of the rest.

// Transaction names an open transaction.
type Transaction struct {
	ID       string
	Producer int64
	Epoch    int16
}

func (f *Frame) transaction(t Transaction) {
	f.string(t.ID)
	f.buf = appendInt64(f.buf, t.Producer)
	f.buf = appendInt16(f.buf, t.Epoch)
}

func (p TopicPartition) topic() string { return p.Topic }

// ofOneTopic returns how many of the first elements have the same topic. A request names each topic once.
func ofOneTopic[T interface{ topic() string }](all []T) int {
	n := 1
	for n < len(all) && all[n].topic() == all[0].topic() {
		n++
	}
	return n
}

// countTopics returns the number of topics. The elements of one topic follow each other.
func countTopics[T interface{ topic() string }](all []T) (n int) {
	for ; len(all) > 0; n++ {
		all = all[ofOneTopic(all):]
	}
	return n
}

// AddPartitions adds partitions to a transaction. Those of one topic must follow each other.
func (f *Frame) AddPartitions(client string, t Transaction, partitions []TopicPartition) {
	f.begin(addPartitionsKey, addPartitionsVersion, client)
	f.transaction(t)
	f.buf = appendInt32(f.buf, int32(countTopics(partitions)))
	for len(partitions) > 0 {
		n := ofOneTopic(partitions)
		f.Topic(partitions[0].Topic, n)
		for _, p := range partitions[:n] {
			f.buf = appendInt32(f.buf, p.Partition)
		}
		partitions = partitions[n:]
	}
	f.end()
}

// ReadAddPartitions calls each with the error of each partition. The topic is valid during the call.
func ReadAddPartitions(answer []byte, each func(topic []byte, partition int32, code int16)) error {
	c := cursor{b: answer}
	c.int32() // throttle time
	for range c.arrayLength(6) {
		topic := c.take(int(max(0, c.int16())))
		for range c.arrayLength(6) {
			partition, code := c.int32(), c.int16()
			if c.err == nil {
				each(topic, partition, code)
			}
		}
	}
	return c.err
}

// AddOffsets says that a transaction will commit offsets of a group.
func (f *Frame) AddOffsets(client string, t Transaction, group string) {
	f.begin(addOffsetsKey, addOffsetsVersion, client)
	f.transaction(t)
	f.string(group)
	f.end()
}

// EndTransaction commits or aborts a transaction.
func (f *Frame) EndTransaction(client string, t Transaction, commit bool) {
	f.begin(endKey, endVersion, client)
	f.transaction(t)
	f.buf = append(f.buf, flag(commit))
	f.end()
}

// ReadCode reads an answer that has only an error: that to AddOffsets, EndTransaction or Heartbeat.
func ReadCode(answer []byte) (code int16, err error) {
	c := cursor{b: answer}
	c.int32() // throttle time
	code = c.int16()
	return code, c.err
}

// CommitOffsets commits offsets of a group as a part of a transaction, for a member of a generation. Those of one topic
// must follow each other.
func (f *Frame) CommitOffsets(client string, t Transaction, group, member string, generation int32, offsets []CommittedOffset) {
	f.begin(commitOffsetsKey, commitOffsetsVersion, client)
	b := append(f.buf, 0) // no tags: this version is flexible
	b = appendCompactString(b, t.ID)
	b = appendCompactString(b, group)
	b = appendInt64(b, t.Producer)
	b = appendInt16(b, t.Epoch)
	b = appendInt32(b, generation)
	b = appendCompactString(b, member)
	b = append(b, 0) // no static member
	b = binary.AppendUvarint(b, uint64(countTopics(offsets))+1)
	for len(offsets) > 0 {
		n := ofOneTopic(offsets)
		b = appendCompactString(b, offsets[0].Topic)
		b = binary.AppendUvarint(b, uint64(n)+1)
		for _, o := range offsets[:n] {
			b = appendInt32(b, o.Partition)
			b = appendInt64(b, o.Offset)
			b = appendInt32(b, -1) // unknown leader epoch
			b = appendCompactString(b, o.Metadata)
			b = append(b, 0)
		}
		b = append(b, 0)
		offsets = offsets[n:]
	}
	f.buf = append(b, 0)
	f.end()
}

// ReadCommitOffsets calls each with the error of each partition.
func ReadCommitOffsets(answer []byte, each func(code int16)) error {
	c := cursor{b: answer}
	c.skipTags()
	c.int32() // throttle time
	for range c.compactCount(3) {
		c.take(int(min(max(c.uvarint(), 1)-1, 1<<30)))
		for range c.compactCount(7) {
			c.int32() // partition
			code := c.int16()
			c.skipTags()
			if c.err == nil {
				each(code)
			}
		}
		c.skipTags()
	}
	c.skipTags()
	return c.err
}

// DescribeProducers requests from a leader the producers that have written to partitions.
func (f *Frame) DescribeProducers(client string, partitions []TopicPartition) {
	f.begin(producersKey, producersVersion, client)
	b := append(f.buf, 0) // no tags: this version is flexible
	b = binary.AppendUvarint(b, uint64(len(partitions))+1)
	for _, p := range partitions {
		b = appendCompactString(b, p.Topic)
		b = binary.AppendUvarint(b, 2)
		b = appendInt32(b, p.Partition)
		b = append(b, 0)
	}
	f.buf = append(b, 0)
	f.end()
}

// PartitionProducer is a producer that has written to a partition. Open is the offset at which its open
// transaction begins there; -1 if it has none. With an error the other fields are empty.
type PartitionProducer struct {
	TopicPartition
	Error    int16
	Producer int64
	Open     int64
}

// ReadDescribeProducers reads the answer to DescribeProducers.
func ReadDescribeProducers(answer []byte) ([]PartitionProducer, error) {
	c := cursor{b: answer}
	var all []PartitionProducer
	c.skipTags()
	c.int32() // throttle time
	for range c.compactCount(3) {
		topic := c.compactString()
		for range c.compactCount(9) {
			p := PartitionProducer{TopicPartition: TopicPartition{topic, c.int32()}, Error: c.int16(), Open: -1}
			c.compactString() // message of the error
			if p.Error != 0 {
				all = append(all, p)
			}
			for range c.compactCount(37) {
				p.Producer = c.int64()
				c.int32() // epoch
				c.int32() // last sequence number
				c.int64() // last timestamp
				c.int32() // epoch of the coordinator
				p.Open = c.int64()
				c.skipTags()
				all = append(all, p)
			}
			c.skipTags()
		}
		c.skipTags()
	}
	c.skipTags()
	return all, c.err
}

// DescribeTransaction requests the state of a transactional id from its coordinator.
func (f *Frame) DescribeTransaction(client, id string) {
	f.begin(transactionsKey, transactionsVersion, client)
	b := append(f.buf, 0, 2) // no tags: this version is flexible; one id
	b = appendCompactString(b, id)
	f.buf = append(b, 0)
	f.end()
}

// TransactionState is the state of a transactional id, as its coordinator knows it. With an error the other fields are empty.
type TransactionState struct {
	Error    int16
	State    string
	Timeout  int32 // in milliseconds
	Producer int64
	Epoch    int16
}

// ReadDescribeTransaction reads the answer to DescribeTransaction.
func ReadDescribeTransaction(answer []byte) (s TransactionState, err error) {
	c := cursor{b: answer}
	c.skipTags()
	c.int32() // throttle time
	for range c.compactCount(28) {
		s.Error = c.int16()
		c.compactString() // id
		s.State = c.compactString()
		s.Timeout = c.int32()
		c.int64() // start
		s.Producer = c.int64()
		s.Epoch = c.int16()
		for range c.compactCount(3) {
			c.compactString() // topic
			for range c.compactCount(4) {
				c.int32()
			}
			c.skipTags()
		}
		c.skipTags()
	}
	c.skipTags()
	return s, c.err
}
