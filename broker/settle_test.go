package broker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

func TestJudge(t *testing.T) {
	cases := []struct {
		code   kafka.Error
		events int
		want   verdict
	}{
		{0, 1, stored},
		{kafka.DuplicateSequenceNumber, 1, stored},
		{kafka.RequestTimedOut, 1, mayStand},
		{kafka.NotEnoughReplicasAfterAppend, 1, mayStand},
		{kafka.OutOfOrderSequenceNumber, 1, relabel},
		{kafka.UnknownProducerId, 1, relabel},
		{kafka.InvalidProducerEpoch, 1, relabel},
		{kafka.InvalidProducerIDMapping, 1, relabel},
		{kafka.MessageSizeTooLarge, 2, takeApart},
		{kafka.MessageSizeTooLarge, 1, refused},
		{kafka.RecordListTooLarge, 2, takeApart},
		{kafka.InvalidRecord, 2, takeApart},
		{kafka.InvalidRecord, 1, refused},
		{kafka.InvalidTimestamp, 2, takeApart},
		{kafka.NotLeaderForPartition, 1, mayStand},
		{kafka.LeaderNotAvailable, 1, mayStand},
		{kafka.NotEnoughReplicas, 1, tryAgain},
		{kafka.KafkaStorageError, 1, mayStand},
		{kafka.NetworkException, 1, mayStand},
		{kafka.InvalidMessage, 1, tryAgain},
		{kafka.UnknownTopicOrPartition, 1, mayStand},
		{kafka.ConcurrentTransactions, 1, tryAgain},
		{kafka.TopicAuthorizationFailed, 1, refused},
		{kafka.ClusterAuthorizationFailed, 1, refused},
		{kafka.ProducerFenced, 1, refused},
		{kafka.Unknown, 1, refused},
		{kafka.Error(9999), 1, refused},
	}
	for _, c := range cases {
		if got := judge(c.code, c.events); got != c.want {
			t.Errorf("judge(%d %s, %d events) is %d, want %d", c.code, c.code.Title(), c.events, got, c.want)
		}
	}
}

// A code that nobody knows proves nothing.
func TestProvesAbsence(t *testing.T) {
	for code, want := range map[kafka.Error]bool{
		kafka.MessageSizeTooLarge: true, kafka.TopicAuthorizationFailed: true, kafka.PolicyViolation: true,
		kafka.Unknown: false, kafka.Error(9999): false,
	} {
		if provesAbsence(code) != want {
			t.Errorf("provesAbsence(%d) is %v", code, !want)
		}
	}
}

// A leader that loses its office before its replicas have a batch answers that
// it is none, and the batch may come to stand all the same. Given up, it must
// not leave its sequence number to the next one, which the broker would take
// for it and drop.
func TestGivenUpAfterALeaderMoved(t *testing.T) {
	p, o := loneProducer(time.Minute)
	p.ident.p = p
	p.ctx = t.Context()
	var got error
	o.put(t, p, func(_ Receipt, err error) { got = err })
	o.id = identity{7, 0}
	p.settle(o, wire.Produced{Error: int16(kafka.NotLeaderForPartition)})
	o.fail(p, kafka.NotLeaderForPartition)
	if !errors.Is(got, ErrInDoubt) {
		t.Errorf("the event is told %v, want that it is in doubt", got)
	}
	if o.id != noIdentity {
		t.Error("the next batch goes under the same sequence number")
	}
}

func TestRefusalSaysWhatNext(t *testing.T) {
	for code, says := range map[kafka.Error]string{
		kafka.Unknown:                  "whose log says why",
		kafka.MessageSizeTooLarge:      "max.message.bytes",
		kafka.TopicAuthorizationFailed: "grant it write",
	} {
		if err := refusal(code, ""); !strings.Contains(err.Error(), says) {
			t.Errorf("%v lacks %q", err, says)
		}
	}
}
