package broker

import (
	"errors"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestProducerCountsWhatBecameOfEvents(t *testing.T) {
	h := newHostile(t, 1)
	p, err := h.b.Producer(ProducerOptions{MaxEvent: 1000})
	h.must(err)
	for n := range 20 {
		_, err := p.Publish(h.ctx(), "events", hostileEvent(n))
		h.must(err)
	}
	for _, v := range []*View{{}, {ID: "1", Source: "/s", Type: "t", Data: []byte(strings.Repeat("x", 2000))}} {
		if _, err := p.Publish(h.ctx(), "events", v); err == nil {
			t.Error("accepted")
		}
	}
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed})
	if _, err := p.Publish(h.ctx(), "events", hostileEvent(0)); !errors.Is(err, kafka.TopicAuthorizationFailed) {
		t.Error(err)
	}
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError})
	if _, err := p.Publish(h.ctx(), "events", hostileEvent(0)); !errors.Is(err, ErrInDoubt) {
		t.Error(err)
	}
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: 2})
	_, err = p.Publish(h.ctx(), "events", hostileEvent(0))
	h.must(err)
	h.must(p.Close(h.ctx()))
	s := p.Stats()
	if s.Events != 21 || s.Batches != 21 || s.Failed != 2 || s.InDoubt != 1 || s.Refused != 2 || s.Retries != 2 || s.Requests != 25 {
		t.Errorf("%+v", s)
	}
	if s.Bytes < 21*20 || s.RequestTime <= 0 || s.BufferedEvents != 0 || s.BufferedBytes != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func TestProducerSaysWhatItHolds(t *testing.T) {
	h := newHostile(t, 1)
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	_, err = p.Publish(h.ctx(), "events", hostileEvent(0))
	h.must(err)
	held := make(chan struct{})
	h.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.SleepControl(func() { <-held })
		return nil, nil, false
	})
	p.Send(h.ctx(), "events", hostileEvent(4), func(_ Receipt, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if s := p.Stats(); s.BufferedEvents != 1 || s.BufferedBytes < 20 {
		t.Errorf("%+v", s)
	}
	close(held)
	h.must(p.Close(h.ctx()))
}

func TestConsumerCountsWhatItHandedOut(t *testing.T) {
	h := newHostile(t, 1)
	_, err := h.b.client.Produce(h.ctx(), &kafka.ProduceRequest{Topic: "tidemill.events", RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("no event"))})})
	h.must(err)
	_, errs := h.publish(0, 30, ProducerOptions{})
	h.must(errors.Join(errs...))
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}})
	h.must(err)
	var open []*Delivery
	for n := 0; n < 30; {
		d, err := c.Poll(h.ctx())
		h.must(err)
		n += len(d.Events)
		open = append(open, d)
	}
	if s := c.Stats(); s.Events != 30 || s.Done != 0 || s.OpenBytes <= 0 || s.Partitions != 2 || s.Rebalances == 0 || s.Fetches == 0 || s.FetchedBytes == 0 {
		t.Errorf("%+v", s)
	}
	open[0].Events[0].Done()
	open[0].Events[0].Done()
	if s := c.Stats(); s.Done != 1 {
		t.Errorf("%d done", s.Done)
	}
	for _, d := range open {
		d.Done()
	}
	h.must(c.Close(h.ctx()))
	if s := c.Stats(); s.Done != 30 || s.DeadLetters != 1 || s.OpenBytes != 0 {
		t.Errorf("%+v", s)
	}
}

func TestConsumerCountsWhatIsLost(t *testing.T) {
	for name, gap := range map[string]struct{ at, from, to, want int64 }{"retention": {0, 0, 5, 5}, "the log was cut": {7, 3, 3, 4}} {
		c, p := bareReader(t, ConsumerOptions{}, nil)
		p.position = gap.at
		c.skipGap(fetchOf(p), gap.from, gap.to, errors.New(name))
		if s := c.Stats(); s.Lost != uint64(gap.want) {
			t.Errorf("%s: %d lost", name, s.Lost)
		}
	}
}
