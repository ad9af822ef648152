package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/cli/connect"
)

// replica is a tidemill serve gateway in this process.
type replica struct {
	url    string
	out    syncBuffer
	stderr syncBuffer
	stop   func() // stops it as Ctrl-C does
	done   chan struct{}
	err    error // its result; read it after done
}

var httpAt = regexp.MustCompile(`http    (https?://\S+)`)

func startGateway(t *testing.T, args ...string) *replica {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &replica{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = run(ctx, append([]string{"serve", "gateway", "--drain-delay", "0s"}, args...), strings.NewReader(""), &r.out, &r.stderr)
	}()
	t.Cleanup(func() {
		stop()
		<-r.done
		if r.err != nil {
			t.Errorf("serve gateway ended: %v\n%s", r.err, &r.stderr)
		}
	})
	eventually(t, func() bool {
		select {
		case <-r.done:
			t.Fatalf("serve gateway ended: %v\n%s", r.err, &r.stderr)
		default:
		}
		at := httpAt.FindStringSubmatch(r.out.String())
		if at != nil {
			r.url = at[1]
		}
		return at != nil
	})
	return r
}

// servers starts a Kafka and a Redis for the test, and returns the flags that name them.
func servers(t *testing.T, o embedded.Options) (flags []string) {
	t.Helper()
	s, err := embedded.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return []string{"--kafka", s.Kafka(), "--redis", s.Redis()}
}

func TestServeGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, "version: 1\nname: prod\nstreams: {messages: {types: [message]}}\n", dir, "c.yaml")
	kafka := servers(t, embedded.Options{Dir: dir})
	r := startGateway(t, append(kafka, "-f", file, "--listen", "127.0.0.1:0")...)
	mention(t, "what it says", r.out.String(), "tidemill's gateway is up after ", "with 9 streams", "kafka   "+kafka[1], "redis   "+kafka[3], "config  "+file)

	mention(t, "publish", ok(t, "publish", "message", "--url", r.url, "--id", "1"), "published message 1 to messages")
	mention(t, "tail", ok(t, "tail", "messages", "--url", r.url, "--from", "beginning", "--no-follow"), "  1  ")
	mention(t, "the same from Kafka", ok(t, "tail", "messages", kafka[0], kafka[1], "--name", "prod", "--from", "beginning", "--no-follow"), "  1  ")

	leave(t, "version: 1\nname: prod\nstreams: {messages: {types: [message]}, orders: {types: [order]}}\n", file)
	eventually(t, func() bool {
		return strings.Contains(call(t, "", "publish", "order", "--url", r.url).out, "to orders")
	})
	eventually(t, func() bool { return strings.Contains(ok(t, "streams", "--url", r.url), "orders") }) // a list may be a second old
	r.stop()
	<-r.done
	if o := call(t, "", "streams", "--url", r.url); o.code != exitFailed || !strings.Contains(o.err, "reach the gateway: ") {
		t.Errorf("a stopped gateway answers: exit %d, %s", o.code, o.err)
	}
}

func TestServeGatewayLetsNobodyInWithoutToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := append(servers(t, embedded.Options{Dir: dir}), "--listen", "127.0.0.1:0", "-f", leave(t, "version: 1\n", dir, "c.yaml"))
	file := dir + "/access.yaml"
	token := func(name, role string) string {
		o := call(t, "", "token", "new", name, "--role", role, "--file", file)
		if o.code != 0 {
			t.Fatal(o.err)
		}
		return leave(t, o.out, dir, name)
	}
	publisher, reader := token("crm", "publish"), token("ana", "read")
	r := startGateway(t, append(flags, "--access", file)...)
	for _, c := range []struct {
		args, token string
		code        int
		says        string
	}{
		{"publish a --id 1", publisher, 0, "published a 1"},
		{"publish a", reader, exitFailed, "publish"},
		{"publish a", "", exitFailed, "Bearer TOKEN; give a valid one by TIDEMILL_TOKEN or --token-file"},
		{"publish a", leave(t, "tm_wrong", dir, "wrong"), exitFailed, ""},
		{"tail events --from beginning --no-follow", reader, 0, "authid=crm"},
		{"tail events --from beginning --no-follow", publisher, exitFailed, "read"},
		{"streams", reader, 0, "events"},
		{"streams", "", exitFailed, "no token was given"},
	} {
		args := append(strings.Fields(c.args), "--url", r.url)
		if c.token != "" {
			args = append(args, "--token-file", c.token)
		}
		if o := call(t, "", args...); o.code != c.code || !strings.Contains(o.out+o.err, c.says) || strings.Contains(o.out+o.err, "tm_") {
			t.Errorf("%s with %s: exit %d, %s%s", c.args, c.token, o.code, o.out, o.err)
		}
	}
	for _, args := range [][]string{append(flags, "--access", dir+"/none"), append(flags, "--listen", "0.0.0.0:0")} {
		if o := call(t, "", append([]string{"serve", "gateway"}, args...)...); o.code != exitFailed {
			t.Errorf("%v: exit %d, %s%s", args, o.code, o.out, o.err)
		}
	}
}

// Tokens that cross a network by plain HTTP are no secret. A start says so, unless the flag says that
// this is intended.
func TestPlainHTTPBeyondThisMachine(t *testing.T) {
	for args, warns := range map[string]bool{
		"--listen 0.0.0.0:0": true, "--listen :0": true, "--listen 192.0.2.7:80": true,
		"--listen 0.0.0.0:0 --insecure-http": false, "--listen 127.0.0.1:0": false, "--listen [::1]:0": false,
		"--listen 0.0.0.0:0 --tls-cert c --tls-key k": false,
	} {
		o := call(t, "", append([]string{"serve", "gateway", "--kafka", "127.0.0.1:1", "--access", t.TempDir() + "/none"}, strings.Fields(args)...)...)
		if got := strings.Contains(o.err, "can read a token and use it: give --tls-cert"); got != warns {
			t.Errorf("%s: warns: %t\n%s", args, got, o.err)
		}
	}
}

// During restarts of a gateway neither a reader nor a writer loses or repeats an event.
func TestGatewayRestartsUnderItsCallers(t *testing.T) {
	t.Parallel()
	restartUnderCallers(t, servers(t, embedded.Options{Dir: t.TempDir()}))
}

func restartUnderCallers(t *testing.T, kafka []string) {
	t.Helper()
	const events, restarts = 20_000, 2
	flags := append(kafka, "--listen", "127.0.0.1:0", "-f", leave(t, "version: 1\n", t.TempDir(), "c.yaml"))
	r := startGateway(t, flags...)
	front := startFront(t, r.url)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var tailed, published syncBuffer
	ended := make(chan error, 2)
	go func() {
		ended <- run(ctx, []string{"tail", "events", "--url", front.url, "--from", "beginning", "-n", fmt.Sprint(events), "-o", "json"}, strings.NewReader(""), &tailed, io.Discard)
	}()
	in, lines := io.Pipe()
	go func() {
		ended <- run(ctx, []string{"publish", "--file", "-", "--url", front.url}, in, &published, io.Discard)
	}()
	for i := range events {
		if i%(events/restarts) == events/restarts/2 {
			r.stop()
			<-r.done
			r = startGateway(t, flags...)
			front.lead(r.url)
		}
		fmt.Fprintf(lines, "{\"specversion\":\"1.0\",\"id\":\"%d\",\"source\":\"/x\",\"type\":\"a\",\"subject\":\"k%d\"}\n", i, i%5)
	}
	lines.Close()
	for range 2 {
		if err := <-ended; err != nil {
			t.Fatalf("%v\n%s", err, &published)
		}
	}
	mention(t, "publish", published.String(), "published 20,000 events")
	wantEachOnceInOrder(t, tailed.String(), events)
}

// wantEachOnceInOrder checks that a tail has all numbered events once, in order for each key.
func wantEachOnceInOrder(t *testing.T, tailed string, events int) {
	t.Helper()
	last, seen := map[string]int{}, map[string]bool{}
	for line := range strings.Lines(tailed) {
		var v broker.View
		if err := broker.UnmarshalStructured([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		if seen[v.ID] {
			t.Errorf("event %s came twice", v.ID)
		}
		seen[v.ID] = true
		var n int
		fmt.Sscan(v.ID, &n)
		if before, ok := last[v.Subject]; ok && n < before {
			t.Errorf("event %d of %s came behind %d", n, v.Subject, before)
		}
		last[v.Subject] = n
	}
	if len(seen) != events {
		t.Errorf("%d of %d events came", len(seen), events)
	}
}

// front is a fixed address for changing servers, as a load balancer is.
type front struct {
	url string
	to  atomic.Value // host:port
}

func startFront(t *testing.T, to string) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{url: "http://" + l.Addr().String()}
	f.lead(to)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { f.join(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return f
}

func (f *front) lead(to string) { f.to.Store(strings.TrimPrefix(to, "http://")) }

// join closes the connection at once if there is no server.
func (f *front) join(c net.Conn) {
	defer c.Close()
	behind, err := net.Dial("tcp", f.to.Load().(string))
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(behind, c)
		_ = behind.Close()
	}()
	_, _ = io.Copy(c, behind)
}

// During the drain delay readiness fails, and requests are still answered.
func TestServeGatewayDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := append(servers(t, embedded.Options{Dir: dir}), "--listen", "127.0.0.1:0", "-f", leave(t, "version: 1\n", dir, "c.yaml"))
	for _, delay := range []time.Duration{2 * time.Second, connect.LongestDrain} { // a busy machine may need longer than the first delay
		if drainSeen(t, startGateway(t, append(flags, "--drain-delay", delay.String())...), delay) {
			return
		}
	}
	t.Errorf("%s were over before anybody could ask", connect.LongestDrain)
}

// drainSeen stops a replica and asks it during the delay. It returns false if the delay may have
// ended before the last answer.
func drainSeen(t *testing.T, r *replica, delay time.Duration) bool {
	t.Helper()
	status := func(path string) int {
		res, err := http.Get(r.url + path)
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	eventually(t, func() bool { return status("/readyz") == 200 })
	began := time.Now()
	over := func() bool { return time.Since(began) >= delay }
	r.stop()
	code := 200
	eventually(t, func() bool {
		code = status("/readyz")
		return code != 200 || over()
	})
	health, published := status("/healthz"), call(t, "", "publish", "a", "--url", r.url)
	if good := code == 503 && health == 200 && published.code == 0; !good && over() {
		return false
	} else if !good {
		t.Errorf("while it drains it is ready with %d, healthy with %d, and who publishes gets %+v", code, health, published)
	}
	<-r.done
	return true
}

func TestTwoReplicasShareOneMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := append(servers(t, embedded.Options{Dir: dir}), "--listen", "127.0.0.1:0", "-f", leave(t, "version: 1\n", dir, "c.yaml"))
	var all [2]*replica
	var starting sync.WaitGroup
	for i := range all {
		starting.Go(func() { all[i] = startGateway(t, flags...) })
	}
	starting.Wait()
	eventually(t, func() bool { // Redis may be late on a busy machine
		call(t, "", "publish", "a", "--id", "1", "--url", all[0].url)
		return strings.Contains(call(t, "", "publish", "a", "--id", "1", "--url", all[1].url).out, "exists already")
	})
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "1": 1, "1048576": 1 << 20, "512KiB": 512 << 10, "1 MiB": 1 << 20, "1GiB": 1 << 30} {
		if got, err := connect.ParseSize(text); got != want || err != nil {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "x", "KiB", "1.5MiB", "2GiB", "99999999999", "1kb"} {
		if n, err := connect.ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
}

func TestParseMemory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 0, "16MiB": 16 << 20, "1GiB": 1 << 30, "4TiB": 1 << 42, "20000000": 20_000_000} {
		if got, err := parseMemory(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"1", "15MiB", "5TiB", "GiB", "-1GiB", "1.5GiB", "1GB", "99999999999999TiB"} {
		if got, err := parseMemory(text); err == nil {
			t.Errorf("%s is %d", text, got)
		}
	}
}

// A scorer role that lacks flags is refused before it opens anything.
func TestServeScorerSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"NAME is missing; name the scorer of the config": {"serve", "scorer"},
		"one argument too many":                          {"serve", "controller", "intents"},
		"--access is for the role gateway":               {"serve", "scorer", "intents", "--access", "a.yaml"},
		"give --redis and --store":                       {"serve", "scorer", "intents", "--kafka", "127.0.0.1:1"},
		"--model-memory \"1GB\": give 16MiB to 4TiB":     {"serve", "scorer", "intents", "--kafka", "127.0.0.1:1", "--model-memory", "1GB"},
		"-d is missing":                                  {"score", "intents"},
		"SCORER is missing":                              {"score", "-d", "{}"},
	} {
		if o := call(t, "", args...); o.code == 0 || !strings.Contains(o.err, says) {
			t.Errorf("%v: %d %s, want %q", args, o.code, o.err, says)
		}
	}
}
