package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// FuzzConnection sends arbitrary bytes to the whole gateway. The gateway must survive, and its
// answers must be HTTP: problems, except for the answers that net/http gives before a handler runs.
func FuzzConnection(f *testing.F) {
	post := "POST /events HTTP/1.1\r\n" + head
	for _, seed := range []string{
		"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"OPTIONS /events HTTP/1.1\r\nHost: localhost\r\nWebHook-Request-Origin: x\r\n\r\n",
		post + "Content-Length: 2\r\n\r\nhi",
		post + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + post + "\r\n",
		post + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
		"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cloudevents+json\r\nContent-Length: 57\r\n\r\n" + `{"specversion":"1.0","type":"t","source":"/s","id":"fuzz"}`,
		"POST /streams/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cloudevents-batch+json\r\nContent-Length: 63\r\n\r\n" +
			`[{"specversion":"1.0","type":"t","source":"/s","id":"fuzz"},{}]`,
		"POST /streams/facts HTTP/1.0\r\n" + head + "Content-Length: 99999999999\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	addr := newWorld(f, nil).gateway.Addr()
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer := raw(t, addr, string(sent))
		if bytes.Contains(sent, []byte("HEAD")) {
			return // a HEAD answer cannot be parsed without knowing the method
		}
		for r := bufio.NewReader(bytes.NewReader(answer)); ; {
			if _, err := r.Peek(1); errors.Is(err, io.EOF) {
				break
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%v in %q", err, answer)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // the connection was cut, because some of the sent bytes were not read
				t.Fatalf("%v in %q", err, answer)
			}
			got := reply{res, string(body)}
			if res.StatusCode >= 300 && !fromNetHTTP(got) && res.Header.Get("Content-Type") != api.ProblemType {
				t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
			}
			if strings.Contains(got.body, api.Internal) {
				t.Errorf("a fault of ours: %s", body)
			}
		}
	})
}
