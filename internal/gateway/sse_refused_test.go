package gateway

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/internal/gateway/access"
)

// A tail may last for days, but not after its token has been revoked.
func TestATailEndsWithItsToken(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{
		"removed": callerLine("other", "role: read"), "without the role": callerLine("reader", "role: publish"), "narrowed": callerLine("reader", "role: read, keys: [a]"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "access.yaml")
			write := func(tokens string) {
				if err := os.WriteFile(path, []byte("version: 1\ntokens:\n"+tokens), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(callerLine("reader", "role: read"))
			guard := must1(access.Open(t.Context(), path, access.Options{}))(t)
			w := newWorld(t, func(o *Options) { o.Access = guard })
			t.Cleanup(func() { w.must(guard.Close(t.Context())) })
			publish := func(id, subject string) {
				must1(w.producer.Publish(t.Context(), "events", &broker.View{ID: id, Source: "/x", Type: "t", Subject: subject}))(t)
			}
			l := w.listen("events/events", tokenHeader("reader")...)
			l.firstID()
			publish("before", "b")
			if line, _ := l.next(); idOf(t, line) != "before" {
				t.Fatalf("it begins with %+v", line)
			}
			write(then)
			w.waitUntil("the file applies", func() bool {
				c, err := guard.Caller(t.Context(), tokenHeader("reader")[1])
				return err != nil || !c.Has(access.Read) || !c.AllKeys(access.Read)
			})
			publish("after", "b")
			publish("own", "a")
			b, err := l.nextBlock()
			if name == "narrowed" {
				if err != nil || idOf(t, tailedOf(t, b)) != "own" {
					t.Errorf("then comes %+v, %v", b, err)
				}
				return
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("it goes on with %+v, %v", b, err)
			}
		})
	}
}
