//go:build slow

package network

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

// The HTTP/2 attacks: streams that are reset at once, and streams whose client takes no answer.
func TestHTTP2FloodsTakeLittleMemory(t *testing.T) {
	for name, attack := range map[string]func(*http2.Framer, uint32, []byte) error{
		"rapid reset": func(f *http2.Framer, id uint32, block []byte) error {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true}); err != nil {
				return err
			}
			return f.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"no window": func(f *http2.Framer, id uint32, block []byte) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: true})
		},
		"pings":    func(f *http2.Framer, _ uint32, _ []byte) error { return f.WritePing(false, [8]byte{}) },
		"settings": func(f *http2.Framer, _ uint32, _ []byte) error { return f.WriteSettings() },
		"endless head": func(f *http2.Framer, id uint32, block []byte) error {
			if id == 1 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:len(block)/2]})
			}
			return f.WriteContinuation(1, false, block)
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, at := start(t, ServerOptions{HTTP2: true})
			rest := inUse()
			peak := rest
			var floods sync.WaitGroup
			for range 10 {
				c := dial(t, at)
				floods.Go(func() { flood(c, attack) })
			}
			over := make(chan struct{})
			go func() { floods.Wait(); close(over) }()
			for done := false; !done; {
				peak = max(peak, inUse())
				select {
				case <-over:
					done = true
				default:
				}
			}
			if used := peak - rest; used > most {
				t.Errorf("it takes %d MiB", used>>20)
			}
			t.Logf("%d MiB", (peak-rest)>>20)
			ask(t, at)
		})
	}
}

func TestHalfSentHeadsTakeLittleMemory(t *testing.T) {
	s, at := start(t, ServerOptions{Connections: 10_000, Unfinished: 4 << 20})
	rest := inUse()
	head := "GET / HTTP/1.1\r\nHost: localhost\r\n"
	for i := 0; len(head) < 93<<10; i++ {
		head += fmt.Sprintf("%c%c:a\r\n", 'a'+i%26, 'a'+i/26%26)
	}
	for range 600 {
		c := dial(t, at)
		_, _ = io.WriteString(c, head[:16<<10]) // an error means that the server has closed the connection
	}
	waitUntil(t, "the heads are read", func() bool { return s.unfinishedBytes() > 3<<20 })
	if used := inUse() - rest; used > most {
		t.Errorf("600 half-sent heads take %d MiB", used>>20)
	}
	waitUntil(t, "a request is answered", func() bool { // in the first second no head makes room
		answer, err := http.Get("http://" + at)
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}
