package dedupe_test

import (
	"cmp"
	"context"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/embedded"
)

const window = 10 * time.Minute

func embeddedRedis(t testing.TB) string {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s.Redis()
}

// openMemory opens a Memory with a Patience that suffices on a busy machine, unless the options set
// one.
func openMemory(t testing.TB, o dedupe.Options) *dedupe.Memory {
	t.Helper()
	var err error
	o.Names, err = tidemill.NewNames("test")
	must(t, err)
	o.Kafka = cmp.Or(o.Kafka, "kafka")
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	m, err := dedupe.Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
