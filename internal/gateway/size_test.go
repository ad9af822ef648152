package gateway

import (
	"fmt"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

// The window is smaller than the producer's buffer only if the window counts at least as many
// bytes for an event as the buffer.
func TestNoEventIsLargerThanItsSize(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	long := strings.Repeat("x", 2000)
	many := make([]broker.Attribute, 50)
	for i := range many {
		many[i] = broker.Attribute{Name: fmt.Sprintf("x%d", i), Value: "1"}
	}
	for name, v := range map[string]broker.View{
		"small":        {},
		"all core":     {Subject: "s", DataContentType: "text/plain", DataSchema: "http://x.example/1", Time: "2026-01-01T00:00:00Z", Data: []byte("x")},
		"subject":      {Subject: long},
		"partitionkey": {Subject: "s", Extensions: []broker.Attribute{{Name: "partitionkey", Value: long}}},
		"extensions":   {Extensions: many},
	} {
		v.ID, v.Source, v.Type = "1", "/x", "t"
		strict := must1(w.broker.Producer(broker.ProducerOptions{MaxEvent: int(sizeOf(&v))}))(t)
		if _, err := strict.Publish(t.Context(), "messages", &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.must(strict.Close(t.Context()))
	}
}
