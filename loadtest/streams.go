package main

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// partitions is the number of partitions of every stream of the test.
const partitions = 8

// streams makes and removes the streams of the test. Each client writes to a new one, which is
// removed later, so that no round runs on a fuller disk than another.
type streams struct {
	b      *broker.Broker
	client *kafka.Client
	names  tidemill.Names
	made   int
}

func openStreams(ctx context.Context, addr string) (*streams, error) {
	names, err := tidemill.NewNames("")
	if err != nil {
		return nil, err
	}
	b, err := broker.Open(ctx, broker.Options{Addr: addr, Names: names})
	if err != nil {
		return nil, err
	}
	s := &streams{b: b, client: &kafka.Client{Addr: kafka.TCP(addr)}, names: names}
	// The stream to which a consumer's undecodable records would go.
	_, err = b.EnsureStreams(ctx, []broker.StreamSpec{{Name: tidemill.StreamDeadLetters, Partitions: 1}}, broker.EnsureOptions{})
	return s, err
}

// newStream makes a stream and returns its name.
func (s *streams) newStream(ctx context.Context) (string, error) {
	s.made++
	name := fmt.Sprintf("load-%d", s.made)
	_, err := s.b.EnsureStreams(ctx, []broker.StreamSpec{{Name: name, Partitions: partitions}}, broker.EnsureOptions{})
	return name, err
}

func (s *streams) remove(ctx context.Context, stream string) error {
	topic := s.names.Topic(stream)
	res, err := s.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err == nil {
		err = res.Errors[topic]
	}
	if err != nil {
		return fmt.Errorf("remove stream %s: %w", stream, err)
	}
	return nil
}
