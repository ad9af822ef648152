package broker

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestAUserWithoutTheRightToDelete(t *testing.T) {
	h := newHostile(t, 1)
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Err: kerr.TopicAuthorizationFailed})
	if err := h.b.DeleteBelow(h.ctx(), []Position{{Stream: "events", Partition: 0, Offset: 0}}); !errors.Is(err, ErrMayNotDelete) {
		t.Errorf("error %v", err)
	}
	if err := h.b.DeleteBelow(h.ctx(), []Position{{Stream: "no such stream", Partition: 0, Offset: 0}}); err == nil || errors.Is(err, ErrMayNotDelete) {
		t.Errorf("no such stream: error %v", err)
	}
}
