package brokertest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/broker/embedded"
)

// Cases wait more than they compute, so many run in parallel.
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

// startEmbedded retries while its former port is in use: another process may have been
// given it meanwhile.
func startEmbedded(t testing.TB, o embedded.Options) *embedded.Servers {
	ctx, cancel := cleanupContext()
	defer cancel()
	for {
		s, err := embedded.Start(context.Background(), o)
		if err == nil {
			return s
		}
		if !errors.Is(err, syscall.EADDRINUSE) || ctx.Err() != nil {
			t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
}
