package wire

import (
	"cmp"
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
