package connect

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTailTellsThatKafkaIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var away error
		a := &absence{out: &out, ping: func(context.Context) error { return away }, looked: time.Now()}
		minute := func() {
			for range 60 {
				time.Sleep(time.Second)
				a.look(t.Context())
			}
		}
		minute()
		away = errors.New("refused")
		minute()
		away = nil
		minute()
		if want := "Kafka does not answer; tail continues when it does. Last error: refused\nKafka is back.\n"; out.String() != want {
			t.Errorf("it says %q, want %q", &out, want)
		}
	})
}
