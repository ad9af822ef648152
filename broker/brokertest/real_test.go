//go:build real

package brokertest

import (
	"testing"
	"time"

	"tidemill.dev/broker/brokertest/realservers"
)

func TestRealKafka(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{"group.min.session.timeout.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	Run(t, Server{Addr: k.Addr(), Session: 10 * time.Second, Restart: func(t testing.TB) {
		if err := k.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}})
}
