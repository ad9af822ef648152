package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// sendRaw sends bytes over a new connection, closes its writing side, and returns the answer.
func (w *world) sendRaw(text string) []byte {
	w.Helper()
	return raw(w.TB, w.gateway.Addr(), text)
}

func raw(t testing.TB, addr, text string) []byte {
	t.Helper()
	c := dial(t, addr)
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, text) // the gateway may close the connection before the end
		_ = c.CloseWrite()
	}()
	answer, err := io.ReadAll(c)
	if err != nil && !hungUp(err) {
		t.Errorf("%.80q: %v", text, err)
	}
	return answer
}

func (w *world) dial() *net.TCPConn { return dial(w.TB, w.gateway.Addr()) }

func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c := must1(net.Dial("tcp", addr))(t).(*net.TCPConn)
	if err := c.SetDeadline(time.Now().Add(patienceOfTests)); err != nil {
		t.Fatal(err)
	}
	return c
}

func hungUp(err error) bool { return strings.Contains(err.Error(), "reset") }

// parseReplies parses consecutive answers. Half of the test is that they can be parsed.
func parseReplies(t *testing.T, answer []byte) []reply {
	t.Helper()
	var all []reply
	for r := bufio.NewReader(bytes.NewReader(answer)); ; {
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return all
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%v in %.300q", err, answer)
		}
		all = append(all, read(t, res))
	}
}

// fromNetHTTP reports whether net/http gave the answer before a handler ran, because the end of the
// request is unclear, or it is not a request. Such answers are plain text, and the connection ends.
func fromNetHTTP(r reply) bool {
	early := []int{http.StatusBadRequest, http.StatusExpectationFailed, http.StatusRequestHeaderFieldsTooLarge,
		http.StatusNotImplemented, http.StatusHTTPVersionNotSupported}
	return slices.Contains(early, r.StatusCode) && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/")
}

const head = "Host: localhost\r\nce-specversion: 1.0\r\nce-type: test\r\nce-source: /raw\r\nce-id: 1\r\n"

func TestHostileRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Repeats = nil })
	post := "POST /events HTTP/1.1\r\n" + head
	for _, c := range []struct {
		name, text string
		want       string // statuses; a star marks an answer of net/http
		stored     int
	}{
		{"one", post + "Content-Length: 2\r\n\r\nhi", "202", 1},
		{"pipelined", post + "Content-Length: 2\r\n\r\nhi" + post + "Content-Length: 2\r\n\r\nho", "202 202", 2},
		{"chunks", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "202", 1},
		{"a trailer", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nce-id: 2\r\n\r\n", "202", 1},
		{"two lengths", post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!", "400*", 0},
		{"a list of lengths", post + "Content-Length: 2, 3\r\n\r\nhi!", "400*", 0},
		{"a signed length", post + "Content-Length: +2\r\n\r\nhi", "400*", 0},
		{"a length below zero", post + "Content-Length: -1\r\n\r\n", "400*", 0},
		{"a huge length", post + "Content-Length: 99999999999999999999\r\n\r\n", "400*", 0},
		{"a large length", post + "Content-Length: 1099511627776\r\n\r\nhi", "413", 0},
		{"a length that lies", post + "Content-Length: 20\r\n\r\nhi", "400", 0},
		// RFC 9112, 6.1: chunked wins. The bytes after the last chunk are the next request.
		{"a length and chunks", post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "202 200", 1},
		{"two codings", post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "501*", 0},
		{"a strange coding", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501*", 0},
		{"a coding twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "501*", 0},
		{"a space before the colon", post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400*", 0},
		{"bad chunk size", post + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n0\r\n\r\n", "400", 0},
		{"huge chunk size", post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhi", "400", 0},
		{"chunk without an end", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nhiGET / HTTP/1.1\r\n\r\n", "400", 0},
		{"no last chunk", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", "400", 0},
		{"no host", "POST /events HTTP/1.1\r\n\r\n", "400*", 0},
		{"two hosts", "POST /events HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", "400*", 0},
		{"HTTP/1.0", "POST /events HTTP/1.0\r\n" + head + "Content-Length: 2\r\n\r\nhi", "202", 1},
		{"HTTP/1.0 without a host", "GET /healthz HTTP/1.0\r\n\r\n", "403", 0},
		{"HTTP/0.9", "GET /healthz\r\n\r\n", "400*", 0},
		{"HTTP/3.0", "GET /healthz HTTP/3.0\r\n\r\n", "505*", 0},
		{"HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "403", 0},
		{"a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400*", 0},
		{"nothing", "", "", 0},
		{"half a line", "POST /ev", "400*", 0},
		{"a NUL in a header", post + "ce-x: a\x00b\r\n\r\n", "400*", 0},
		{"a strange header name", post + "ce x: a\r\n\r\n", "400*", 0},
		{"no colon", post + "ce-x\r\n\r\n", "400*", 0},
		{"an absolute target", "POST http://evil.example/events HTTP/1.1\r\n" + head + "\r\n", "403", 0},
		{"a target with dots", "POST /streams/../events HTTP/1.1\r\n" + head + "\r\n", "404", 0},
		{"an escaped slash", "POST /streams/facts%2f HTTP/1.1\r\n" + head + "\r\n", "404", 0},
		{"an escaped stream", "POST /streams/%66acts HTTP/1.1\r\n" + head + "\r\n", "403", 0},
		{"a fragment of escapes", "POST /streams/%zz HTTP/1.1\r\n" + head + "\r\n", "400*", 0},
		{"the server's star", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", "200", 0},
		{"connect", "CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", "403", 0},
		{"a strange expectation", post + "Expect: tea\r\nContent-Length: 2\r\n\r\nhi", "417*", 0},
		{"headers over the limit", post + "x: " + strings.Repeat("x", 18<<10) + "\r\n\r\n", "431", 0},
		{"many headers over the limit", post + strings.Repeat("x: y\r\n", 3<<10) + "\r\n", "431", 0},
		{"headers over the backstop", post + "x: " + strings.Repeat("x", 104<<10) + "\r\n\r\n", "431*", 0},
		{"many headers over the backstop", post + strings.Repeat("x:\r\n", 26<<10) + "\r\n", "431*", 0},
		{"an endless line", strings.Repeat("x", 300<<10), "431*", 0},
		{"many attributes", post + attributes(300) + "\r\n", "400", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(w.storedEvents(tidemill.StreamEvents))
			var got []string
			for _, r := range parseReplies(t, w.sendRaw(c.text)) {
				switch {
				case fromNetHTTP(r):
					got = append(got, fmt.Sprint(r.StatusCode, "*"))
				case r.StatusCode >= 300:
					problemOf(t, r)
					fallthrough
				default:
					got = append(got, fmt.Sprint(r.StatusCode))
				}
			}
			if s := strings.ReplaceAll(strings.Join(got, " "), " *", "*"); s != c.want {
				t.Errorf("answered %q, want %q", s, c.want)
			}
			if n := len(w.storedEvents(tidemill.StreamEvents)) - before; n != c.stored {
				t.Errorf("%d stored, want %d", n, c.stored)
			}
		})
	}
	if r := w.post("/events", "", eventHeaders("alive")...); r.StatusCode != http.StatusAccepted {
		t.Error("it does not answer any more")
	}
}

func attributes(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "ce-x%d: y\r\n", i)
	}
	return b.String()
}

func TestContinueIsSaidOnlyToWhoMaySend(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for path, want := range map[string]string{"/events": "100 202", "/streams/facts": "403", "/streams/nowhere": "404"} {
		c := w.dial()
		must1(io.WriteString(c, "POST "+path+" HTTP/1.1\r\n"+head+"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"))(t)
		r := bufio.NewReader(c)
		first := must1(http.ReadResponse(r, nil))(t)
		got := fmt.Sprint(first.StatusCode)
		if first.StatusCode == http.StatusContinue {
			must1(io.WriteString(c, "hi"))(t)
			got += fmt.Sprint(" ", must1(http.ReadResponse(r, nil))(t).StatusCode)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
		w.must(c.Close())
	}
}

func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Connections = 2 })
	inside := []*net.TCPConn{w.dial(), w.dial()} // open but without a request, so not idle
	w.waitUntil("both are inside", func() bool { return w.gateway.server.Open() == 2 })
	turned := parseReplies(t, w.sendRaw("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	if len(turned) != 1 || turned[0].StatusCode != http.StatusServiceUnavailable || !turned[0].Close {
		t.Fatalf("answered %v", turned)
	}
	if p := problemOf(t, turned[0]); p.Type != api.ProblemBase+api.Unavailable {
		t.Errorf("%+v", p)
	}
	for _, c := range inside {
		w.must(c.Close())
	}
	w.waitUntil("there is room again", func() bool {
		all := parseReplies(t, w.sendRaw("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		return len(all) == 1 && all[0].StatusCode == http.StatusOK
	})
}

// Idle connections do not keep others out, and the one that was used last stays open.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	const ask = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	w := newWorld(t, func(o *Options) { o.Limits.Connections = 3 })
	asks := func(c net.Conn) error {
		if _, err := io.WriteString(c, ask); err != nil {
			return err
		}
		_, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err
	}
	first, second, busy := w.dial(), w.dial(), w.dial()
	must1(io.WriteString(busy, ask[:len(ask)-2]))(t)
	w.must(asks(second))
	w.must(asks(first))
	w.waitUntil("both are idle", func() bool { return w.gateway.server.Resting() == 2 })
	w.must(asks(second)) // makes first the longest idle one
	w.waitUntil("there is room for one more", func() bool {
		all := parseReplies(t, w.sendRaw(ask))
		return len(all) == 1 && all[0].StatusCode == http.StatusOK
	})
	if n, err := first.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection idle for longest is still open: %v", err)
	}
	w.must(asks(second))
	must1(io.WriteString(busy, "\r\n"))(t)
	if r := must1(http.ReadResponse(bufio.NewReader(busy), nil))(t); r.StatusCode != http.StatusOK {
		t.Error(r.Status)
	}
}
