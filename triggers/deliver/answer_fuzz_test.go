package deliver

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"tidemill.dev"
)

// FuzzAnswer lets a hostile subscriber answer with whatever bytes: no crash,
// and whatever comes of it is fit to be stored.
func FuzzAnswer(f *testing.F) {
	const event = "Content-Type: application/cloudevents+json\r\nContent-Length: " // and what good is long
	for _, answer := range []string{
		"", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\n" + event + strconv.Itoa(len(good)) + "\r\n\r\n" + good,
		"HTTP/1.1 200 OK\r\nContent-Type: application/cloudevents-batch+json\r\n\r\n[" + good + "," + good + "]",
		"HTTP/1.0 200 OK\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nce-hops: 9\r\nce-time: x\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nCe-Id: trailer\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx",
		"HTTP/1.1 503 Busy\r\nRetry-After: 99999999999999999999\r\n\r\nhunter2", "HTTP/1.1 429 \r\nRetry-After: Fri, 01 Mar 9999 12:00:00 GMT\r\n\r\n",
		"HTTP/1.1 301 Moved\r\nLocation: http://[::1%25hunter2]:x/\r\n\r\n", "HTTP/1.1 307 x\r\nLocation: //a@b/\x80?hunter2\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "HTTP/1.1 000 \r\n\r\n",
	} {
		f.Add([]byte(answer))
	}
	path := secretIn(f, f.TempDir(), "token", "hunter2")
	age(f, path)
	f.Fuzz(func(t *testing.T, raw []byte) {
		trigger := triggerTo("http://subscriber.example/")
		trigger.To.Credentials.BearerFile = path
		s := newPoster(t, trigger, subscriberOptions{})
		transport, err := s.wires.current()
		if err != nil {
			t.Fatal(err)
		}
		transport.Proxy = nil
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go say(theirs, raw)
			return ours, nil
		}
		checkOutcome(t, s.post(t.Context(), posted(), 1))
	})
}

// say answers whatever is asked, and hangs up.
func say(c net.Conn, raw []byte) {
	defer c.Close()
	if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	_, _ = c.Write(raw)
}

func checkOutcome(t *testing.T, o outcome) {
	a := o.attempt
	if o.kind != delivered && a.Error == "" || o.kind == delivered && (a.Error != "" || a.Answer != "") || o.kind != delivered && o.replies != nil {
		t.Fatalf("it is %s with %d replies: %+v", o.kind, len(o.replies), a)
	}
	if o.kind != again && o.after != 0 || o.after < 0 || o.after > longestAfter || a.Took < 0 {
		t.Fatalf("it is %s, to be tried after %s, and took %s", o.kind, o.after, a.Took)
	}
	for _, text := range []string{a.Error, a.Answer} {
		if !utf8.ValidString(text) || len(text) > maxAnswer+3 || strings.Contains(text, "hunter2") {
			t.Fatalf("the attempt says %q", text)
		}
	}
	cause := tidemill.Cause{Source: "/shop", ID: "order-1"}
	for i, r := range o.replies {
		if err := r.Validate(); err != nil || r.ID != cause.Derive("reply", "tell-shop", strconv.Itoa(i)) || tidemill.Reserved(r.Type, r.Source) != nil {
			t.Fatalf("reply %d: %v of %+v", i, err, r)
		}
	}
}
