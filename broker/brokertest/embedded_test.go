package brokertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"tidemill.dev/broker/embedded"
)

// Cases wait more than they compute, so many run side by side.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func TestEmbedded(t *testing.T) {
	dir := t.TempDir()
	o := embedded.Options{Dir: dir}
	s := startEmbedded(t, o)
	o.Kafka, o.Redis = s.Kafka(), s.Redis()
	t.Cleanup(func() { _ = s.Close() })
	Run(t, Server{
		Addr:    s.Kafka(),
		Session: 10 * time.Second, // a busy machine loses a shorter one
		Restart: func(t testing.TB) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = startEmbedded(t, o)
		},
	})
}

func startEmbedded(t testing.TB, o embedded.Options) *embedded.Servers {
	s, err := embedded.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
