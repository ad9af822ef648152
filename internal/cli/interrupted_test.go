package cli

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"tidemill.dev/broker/embedded"
)

// A process that is stopped during its start ends without an error. It does not blame the server
// that it waited for.
func TestInterruptedBeforeItIsUp(t *testing.T) {
	t.Parallel()
	silent, waited := silence(t)
	there := servers(t, embedded.Options{})
	already, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		args []string
	}{
		"up":                  {already, upArgs(t.TempDir(), nil)},
		"up, on a Kafka":      {already, append([]string{"up", "--listen", "127.0.0.1:0"}, there...)},
		"up, Kafka silent":    {waited, []string{"up", "--listen", "127.0.0.1:0", "--kafka", silent, "--redis", silent}},
		"serve":               {already, append([]string{"serve", "gateway", "--listen", "127.0.0.1:0"}, there...)},
		"serve, Kafka silent": {waited, []string{"serve", "gateway", "--listen", "127.0.0.1:0", "--kafka", silent}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, stderr syncBuffer
			err := run(c.ctx, append(c.args, "-f", leave(t, "version: 1\n", t.TempDir(), "c.yaml")), strings.NewReader(""), &out, &stderr)
			if err != nil || out.String() != "" || !strings.Contains(stderr.String(), "interrupted during the start") || strings.Contains(stderr.String(), "cancel") {
				t.Errorf("%v\n%s%s", err, &out, &stderr)
			}
		})
	}
}

// silence is a server that accepts connections and never answers. The context ends at the first
// connection.
func silence(t *testing.T) (addr string, waited context.Context) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	waited, stop := context.WithCancel(t.Context())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop()
			go func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String(), waited
}
