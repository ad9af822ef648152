package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/platform"
)

const poison = "hello, is this the printer?"

// playPoison writes what no producer of ours would and finds it again among the
// dead letters.
func playPoison(ctx context.Context, p *platform.Platform, r *demoReader, out io.Writer) error {
	lies, err := writePoison(ctx, p.Addresses().Kafka, p.Names())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  %q to %s\n", poison, place(lies.Stream, lies.Partition, lies.Offset))
	// The consumer finds the poison while it waits for an event, so it must wait.
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	more := make(chan error, 1)
	go func() {
		_, err := r.next(waiting)
		more <- err
	}()
	letter, at, err := readLetter(ctx, p)
	stop()
	if unexpected := <-more; unexpected == nil {
		return errors.New("an event arrived that nobody published")
	}
	if err != nil {
		return err
	}
	found := broker.Position{Stream: letter.Stream, Partition: letter.Partition, Offset: letter.Offset}
	if found != lies || letter.Record == nil || string(letter.Record.Value) != poison {
		return fmt.Errorf("the dead letter tells of %s, not of the record", place(letter.Stream, letter.Partition, letter.Offset))
	}
	_, err = fmt.Fprintf(out, "  went to %s\n  because: %s\n", place(at.Stream, at.Partition, at.Offset), letter.Reason)
	return err
}

// writePoison speaks to Kafka as a stranger does.
func writePoison(ctx context.Context, address string, names tidemill.Names) (broker.Position, error) {
	client := kafka.Client{Addr: kafka.TCP(address), Transport: &kafka.Transport{}}
	res, err := client.Produce(ctx, &kafka.ProduceRequest{
		Topic: names.Topic(tidemill.StreamEvents), RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(poison))}),
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return broker.Position{}, fmt.Errorf("write a record that is no event: %w", err)
	}
	return broker.Position{Stream: tidemill.StreamEvents, Offset: res.BaseOffset}, nil
}

func readLetter(ctx context.Context, p *platform.Platform) (broker.DeadLetter, broker.Position, error) {
	var letter broker.DeadLetter
	c, err := p.Consumer(ctx, broker.ConsumerOptions{Streams: []string{tidemill.StreamDeadLetters}})
	if err != nil {
		return letter, broker.Position{}, err
	}
	d, err := c.Poll(ctx)
	if err != nil {
		return letter, broker.Position{}, fmt.Errorf("the record did not come to the dead letters: %w", err)
	}
	defer d.Done()
	e := &d.Events[0]
	if e.Err != nil {
		return letter, broker.Position{}, fmt.Errorf("the dead letter is no event itself: %w", e.Err)
	}
	return letter, broker.Position{Stream: d.Stream, Partition: d.Partition, Offset: e.Offset}, json.Unmarshal(e.Data, &letter)
}
