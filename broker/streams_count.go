package broker

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"tidemill.dev/broker/internal/wire"
)

// Kafka knows offsets, not events: a transaction takes an offset of each of its partitions for its
// marker, and compaction leaves gaps. No request returns the number of records, and reading a whole
// log to count it costs as much as consuming it. So a survey looks at the last record of each
// partition. A marker there means that the partition has transactions, and then the heads of its
// newest batches give the share of events. A short log is read as a whole, so its number is exact.
// Measured on an embedded Kafka, a partition with transactions adds 256 KiB and 0.3 to 1.8 ms to a
// survey; of 9,000 events in 12,000 offsets the estimate was 9,008.
const (
	probeBytes  = 16 << 10
	sampleBytes = 256 << 10
	sampleSpan  = 16 << 10 // offsets
	samplesMost = 64 << 20 // bytes of one answer; partitions beyond them stay without a sample
)

// sample is the number of events between two offsets of a partition.
type sample struct {
	from, to int64 // first offset, and the one after the last batch
	events   int64
	marker   bool      // the last batch is a marker
	batches  []counted // batches with events, in order
}

// counted is a batch of events.
type counted struct {
	base, last int64 // first and last offset
	events     int64 // number of events from the begin of the sample to the end of the batch
}

// add counts a batch.
func (s *sample) add(b *wire.Batch) {
	s.to, s.marker = b.LastOffset+1, b.Control
	if !b.Control {
		base := max(s.from, b.BaseOffset) // a batch may begin before the sample
		s.events += min(int64(b.Count), s.to-base)
		s.batches = append(s.batches, counted{base, b.LastOffset, s.events})
	}
}

// before returns the number of the sample's events before an offset.
func (s *sample) before(offset int64) (n int64) {
	i, _ := slices.BinarySearchFunc(s.batches, offset, func(b counted, offset int64) int { return cmp.Compare(b.last, offset) })
	if i > 0 {
		n = s.batches[i-1].events
	}
	if i < len(s.batches) {
		n += min(max(0, offset-s.batches[i].base), s.batches[i].events-n)
	}
	return n
}

// between returns the number of events between two offsets. Offsets outside the sample are estimated.
func (s *sample) between(from, to int64) (events int64, estimated bool) {
	first, last := max(from, s.from), min(to, s.to)
	outside := max(0, to-from)
	if first < last {
		events, outside = s.before(last)-s.before(first), outside-(last-first)
	}
	return events + int64(math.Round(float64(outside)*s.share())), outside > 0
}

// share returns the share of events among the offsets.
func (s *sample) share() float64 {
	return float64(s.events) / float64(s.to-s.from)
}

// countEvents samples the partitions that have transactions. If a server refuses or does not answer,
// its partitions have no sample, and their offsets count as events.
func (b *Broker) countEvents(ctx context.Context, topics []wire.TopicMetadata, start, end map[wire.TopicPartition]int64) map[wire.TopicPartition]sample {
	last, newest := map[wire.TopicPartition]int64{}, map[wire.TopicPartition]int64{}
	for p := range end {
		if end[p] > start[p] {
			last[p] = end[p] - 1
		}
	}
	for p, s := range b.readSamples(ctx, topics, last, probeBytes) {
		if s.marker || s.to == s.from { // an open transaction hides the last record
			newest[p] = max(start[p], end[p]-sampleSpan)
		}
	}
	found := b.readSamples(ctx, topics, newest, sampleBytes)
	maps.DeleteFunc(found, func(_ wire.TopicPartition, s sample) bool { return s.to == s.from })
	return found
}

// readSamples reads the batches of partitions from an offset on, with one request to each server.
func (b *Broker) readSamples(ctx context.Context, topics []wire.TopicMetadata, from map[wire.TopicPartition]int64, most int32) map[wire.TopicPartition]sample {
	var mu sync.Mutex
	all := map[wire.TopicPartition]sample{}
	var reads []func(context.Context) error
	for node, led := range byLeader(topics) {
		led = slices.DeleteFunc(led, func(p wire.TopicPartition) bool { _, asked := from[p]; return !asked })
		if len(led) == 0 {
			continue
		}
		reads = append(reads, func(ctx context.Context) error {
			some, _ := b.readSamplesOn(ctx, node, led, from, most) // after an error, partitions stay without a sample
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, some)
			return nil
		})
	}
	_ = runParallel(ctx, reads...) // no function returns an error
	return all
}

func (b *Broker) readSamplesOn(ctx context.Context, node int32, led []wire.TopicPartition, from map[wire.TopicPartition]int64, most int32) (map[wire.TopicPartition]sample, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	slices.SortFunc(led, func(x, y wire.TopicPartition) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	var frame wire.Frame
	byTopic := slices.CompactFunc(slices.Clone(led), func(x, y wire.TopicPartition) bool { return x.Topic == y.Topic })
	frame.BeginFetch(wire.FetchHead{Client: b.names.Install(), MaxBytes: int32(min(int64(most)*int64(len(led)), samplesMost)), Topics: len(byTopic)})
	for i, p := range led {
		if i == 0 || led[i-1].Topic != p.Topic {
			frame.Topic(p.Topic, countTopic(led[i:], p.Topic))
		}
		frame.From(p.Partition, from[p], most)
	}
	frame.EndFetch()
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return nil, err
	}
	all := map[wire.TopicPartition]sample{}
	_, err = wire.ReadFetched(answer, func(part *wire.Fetched) {
		p := wire.TopicPartition{Topic: part.Topic, Partition: part.Partition}
		if part.Error == 0 {
			all[p] = sampleOf(part.Records, from[p])
		}
	})
	return all, err
}

func countTopic(led []wire.TopicPartition, topic string) (n int) {
	for n < len(led) && led[n].Topic == topic {
		n++
	}
	return n
}

// sampleOf counts the events in a fetched record set.
func sampleOf(set []byte, from int64) sample {
	s := sample{from: from, to: from}
	for {
		b, rest, ok, err := wire.NextBatch(set)
		if err != nil || !ok {
			return s
		}
		s.add(&b)
		set = rest
	}
}
