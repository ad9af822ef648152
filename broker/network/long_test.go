//go:build slow

package network

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// most is the memory that an attack may cost beyond rest.
const most = 256 << 20

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

// inUse returns the live bytes of this process's heap.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// flood sends 500 attacks on one connection, or as many as the server takes.
func flood(c net.Conn, attack func(*http2.Framer, uint32, []byte) error) {
	_ = c.SetDeadline(time.Now().Add(time.Second)) // the server may no longer read
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return
	}
	go func() { _, _ = io.Copy(io.Discard, c) }()
	f := http2.NewFramer(c, nil)
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return
	}
	var text bytes.Buffer
	for e, i := hpack.NewEncoder(&text), uint32(0); i < 500; i++ {
		text.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "localhost"}, {":path", "/"}} {
			_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		for n := range 400 {
			_ = e.WriteField(hpack.HeaderField{Name: string([]byte{'a' + byte(n%20), 'a' + byte(n/20)}), Value: "a"})
		}
		if attack(f, 2*i+1, text.Bytes()) != nil {
			return
		}
	}
}

// ask sends an ordinary request.
func ask(t *testing.T, at string) {
	t.Helper()
	answer, err := http.Get("http://" + at)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
}

func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for look := time.NewTicker(time.Millisecond); !is(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatal("no end of the wait: " + what)
		}
	}
}

func (s *Server) unfinishedBytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}
