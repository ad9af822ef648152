package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
)

// fronted returns a proxy that sends requests for hello.ns to a server.
func fronted(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	behind := httptest.NewUnstartedServer(handler)
	behind.Config.Protocols = protocols()
	behind.Start()
	t.Cleanup(behind.Close)
	address, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	var table table
	table.hosts.Store(&map[string][]route{
		"hello.ns":   {{splits: []split{{percent: 100, url: address, headers: map[string]string{"Knative-Serving-Revision": "hello-1"}}}}},
		"renamed.ns": {{host: "hello.ns", splits: []split{{percent: 100, url: address}}}},
		"closed.ns":  {{splits: []split{{percent: 100, url: &url.URL{Scheme: "http", Host: nobodyListens(t)}}}}},
	})
	front := httptest.NewUnstartedServer(newProxy(&table))
	front.Config.Protocols = protocols()
	front.Start()
	t.Cleanup(front.Close)
	return front
}

// nobodyListens returns a port that does not answer. The test holds the port, so that no other
// server can listen there.
func nobodyListens(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

func ask(t *testing.T, client *http.Client, front *httptest.Server, host string, body io.Reader) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+"/path?q=1", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

func TestProxyForwards(t *testing.T) {
	front := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Host, r.URL, r.Header.Get("Knative-Serving-Revision"), body)
	})
	for host, want := range map[string]string{
		"hello.ns":   "200 hello.ns /path?q=1 hello-1 event",
		"renamed.ns": "200 hello.ns /path?q=1  event",
		"nobody.ns":  `404 no Knative Service has the host "nobody.ns" and path "/path"`,
	} {
		answer := ask(t, front.Client(), front, host, strings.NewReader("event"))
		body, err := io.ReadAll(answer.Body)
		if got := fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(string(body))); got != want || err != nil {
			t.Errorf("%s answers %q, %v, want %q", host, got, err, want)
		}
	}
	if got := ask(t, front.Client(), front, "closed.ns", nil).StatusCode; got != http.StatusBadGateway {
		t.Errorf("where nobody listens it answers %d", got)
	}
}

// TestProxyStreams makes each side wait for the other side's bytes before its own body has ended.
func TestProxyStreams(t *testing.T) {
	front := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(w, "heard "+line)
			http.NewResponseController(w).Flush()
		}
	})
	two := new(http.Protocols)
	two.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: two}}
	defer client.CloseIdleConnections()
	read, written := io.Pipe()
	go io.WriteString(written, "one\n")
	answer := ask(t, client, front, "hello.ns", read)
	if answer.ProtoMajor != 2 {
		t.Errorf("it speaks %s", answer.Proto)
	}
	lines := bufio.NewReader(answer.Body)
	for _, next := range []string{"two\n", ""} {
		if got, err := lines.ReadString('\n'); !strings.HasPrefix(got, "heard ") || err != nil {
			t.Fatalf("it answers %q, %v", got, err)
		}
		if next != "" {
			io.WriteString(written, next)
		}
	}
	written.Close()
}
