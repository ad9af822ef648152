package broker

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Whoever burns an identity holds a partition's lock, on which those wait who
// send: it must not wait for Kafka's answer to somebody's question.
func TestBurnDoesNotWaitForKafka(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events"))
	asked, answer := make(chan struct{}), make(chan struct{})
	k.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		<-answer
		return nil, nil, false
	})
	ids := identities{p: &Producer{b: b}}
	got := make(chan error, 1)
	go func() {
		_, err := ids.get(t.Context())
		got <- err
	}()
	<-asked
	burnt := make(chan struct{})
	go func() {
		ids.burn(identity{7, 0})
		close(burnt)
	}()
	select {
	case <-burnt:
	case <-time.After(hostilePatience):
		t.Error("it waits")
	}
	close(answer)
	if err := <-got; err != nil {
		t.Error(err)
	}
	<-burnt
}
