//go:build slow && linux

package attacks

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
)

// Every port of the process and of its children is known to this test, is on loopback only, and
// survives what strangers send.
func TestEveryPortStandsHostileBytes(t *testing.T) {
	w := openWorld(t, nil)
	for _, at := range w.ports() {
		what := w.kindOf(at)
		if what == "" {
			t.Errorf("the process listens on %s, and this test does not know why: add an attack on that port, or close it", at)
			continue
		}
		if host, _, err := net.SplitHostPort(at); err != nil || !net.ParseIP(host).IsLoopback() {
			t.Errorf("%s: %s can be reached by other machines", what, at)
		}
		for name, text := range hostileBytes() {
			send(at, text)
			w.mustListen(fmt.Sprintf("%s after %s", what, name), at)
		}
		w.healthy("after the attacks on " + what)
	}
}

// The laptop's Kafka and Redis hold facts that decide what is run. A local user without the password
// must not read or write them.
func TestKafkaAndRedisAskForAPassword(t *testing.T) {
	w := openWorld(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), healthyWithin)
	defer cancel()
	if err := forge(ctx, w.kafka); err == nil {
		t.Error("Kafka stores a record of a client without a password")
	}
	if topics, err := listTopics(ctx, w.kafka); err == nil {
		t.Errorf("Kafka tells %d topics to a client without a password", topics)
	}
	for _, password := range []string{"", "x"} {
		c := redis.NewClient(&redis.Options{Addr: w.redis, Password: password, MaxRetries: -1})
		if keys, err := c.Keys(ctx, "*").Result(); err == nil {
			t.Errorf("Redis tells %d keys to a client with the password %q", len(keys), password)
		}
		_ = c.Close()
	}
}

// A local user without the password holds only a few connections, whatever it opens.
func TestStrangersHoldFewConnections(t *testing.T) {
	w := openWorld(t, nil)
	const opened, most = 300, 64
	for name, c := range map[string]struct{ at, half string }{"Kafka": {w.kafka, "\x00\x00\x0f\xff\x00\x24\x00\x01"}, "Redis": {w.redis, "*2\r\n$4\r\nAUTH\r\n$200\r\n"}} {
		closed := make(chan bool, opened)
		for range opened {
			conn, err := net.DialTimeout("tcp", c.at, healthyWithin)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, c.half) // the server may have closed it
			go func() {
				_, _ = conn.Read(make([]byte, 1))
				closed <- true
			}()
		}
		if !waits(startWithin, func() bool { return len(closed) >= opened-most }) {
			t.Errorf("%s keeps %d of %d connections of a stranger", name, opened-len(closed), opened)
		}
		w.healthy("after many connections to " + name)
	}
}

// A data folder that others may write could hold the passwords and the run secret of another user.
func TestAnOpenDataFolderIsRefused(t *testing.T) {
	w := &world{T: t, dir: t.TempDir()}
	w.write("tidemill.yaml", worldConfig)
	w.write("models/README", "the models of the attack\n")
	data := filepath.Join(w.dir, "data")
	if err := errors.Join(os.Mkdir(data, 0o700), os.Chmod(data, 0o777)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), healthyWithin)
	defer cancel()
	out, err := w.command(ctx, "up", "--data", data, "--kafka-port", "0", "--redis-port", "0", "--listen", "127.0.0.1:0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "chmod go-w "+data) {
		t.Errorf("tidemill up: %v\n%s", err, out)
	}
}

// forge writes a record to the stream of facts, which starts runs.
func forge(ctx context.Context, at string) error {
	c := &kafka.Writer{Addr: kafka.TCP(at), Topic: "tidemill.facts", MaxAttempts: 1, BatchTimeout: time.Millisecond}
	defer c.Close()
	return c.WriteMessages(ctx, kafka.Message{Value: []byte("{}")})
}

func listTopics(ctx context.Context, at string) (int, error) {
	m, err := (&kafka.Client{Addr: kafka.TCP(at)}).Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return 0, err
	}
	return len(m.Topics), nil
}

// ports returns the addresses on which the process and its children listen.
func (w *world) ports() []string {
	w.Helper()
	pid := w.cmd.Process.Pid
	sockets := map[string]bool{}
	for _, p := range append(children(pid), pid) {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p)) // the child may have ended
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "socket:[") {
				sockets[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
			}
		}
	}
	var all []string
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			w.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			const local, state, inode, listens = 1, 3, 9, "0A"
			if f := strings.Fields(line); len(f) > inode && f[state] == listens && sockets[f[inode]] {
				all = append(all, parseAddress(w, f[local]))
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < 3 {
		w.Fatalf("the process listens on %q, and there must be at least HTTP, Kafka and Redis", all)
	}
	return all
}

// children returns the ids of all processes below one.
func children(pid int) []int {
	var all []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // none without a child
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), children(child)...)
			}
		}
	}
	return all
}

// parseAddress reads an address as the kernel writes it: words of four bytes in the machine's order, a
// colon, and the port.
func parseAddress(w *world, text string) string {
	w.Helper()
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw)%4 != 0 {
		w.Fatalf("%q is no address of the kernel", text)
	}
	ip := make(net.IP, len(raw))
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(ip[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	return net.JoinHostPort(ip.String(), strconv.FormatUint(number, 10))
}

// kindOf returns the purpose of a port; empty if the test does not know it. The ports of our functions and of
// agents are random, so their answers tell them apart. Neither may do anything without a token.
func (w *world) kindOf(at string) string {
	w.Helper()
	for name, known := range map[string]string{"the gateway": strings.TrimPrefix(w.url, "http://"), "Kafka": w.kafka, "Redis": w.redis} {
		if at == known {
			return name
		}
	}
	if status, body := w.ask(http.MethodPost, "http://"+at+"/agent/v1/attempts/x/beat"); status == http.StatusUnauthorized && strings.Contains(body, "application/problem+json") {
		return "the port for agents"
	}
	status, body := w.ask(http.MethodPost, "http://"+at+"/forget", "ce-specversion", "1.0", "ce-type", "bot-deleted", "ce-source", "/x", "ce-id", "1", "ce-subject", "bot-7")
	switch status {
	case 0, http.StatusNotFound:
		return ""
	case http.StatusUnauthorized, http.StatusForbidden:
	default:
		w.Errorf("the port of our functions forgets a key for a caller without a token: %d %s", status, body)
	}
	return "the port of our functions"
}

// ask sends a request without a token, and returns its status, and its content type and body.
func (w *world) ask(method, url string, headers ...string) (int, string) {
	w.Helper()
	r := w.request(method, "", "", "", headers...)
	to, err := r.URL.Parse(url)
	if err != nil {
		w.Fatal(err)
	}
	r.URL, r.Host = to, to.Host
	a := w.do(r)
	return a.status, a.header.Get("Content-Type") + " " + a.body
}

// hostileBytes returns what strangers may send to any port.
func hostileBytes() map[string]string {
	random := rand.New(rand.NewPCG(1, 2))
	garbage := make([]byte, 64<<10)
	for i := range garbage {
		garbage[i] = byte(random.Uint32())
	}
	return map[string]string{
		"nothing":                     "",
		"half a request":              "GET / HT",
		"garbage":                     string(garbage),
		"a huge header":               "GET / HTTP/1.1\r\nHost: localhost\r\nx: " + strings.Repeat("x", 4<<20) + "\r\n\r\n",
		"HTTP without a token":        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
		"HTTP that forgets a key":     "POST /api/v1/keys/forget HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{\"key\":\"bot-1\"}",
		"an endless line":             strings.Repeat("a", 2<<20),
		"TLS":                         "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"HTTP/2":                      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"an empty array for Redis":    "*0\r\n",
		"a negative array for Redis":  "*-1\r\n*-2\r\n",
		"a huge array for Redis":      "*2147483647\r\n$2147483647\r\nx",
		"a negative size for Redis":   "*1\r\n$-5\r\n",
		"a deep array for Redis":      strings.Repeat("*1\r\n", 100_000),
		"an inline command for Redis": "SHUTDOWN NOSAVE\r\nFLUSHALL\r\n",
		"a script for Redis":          "*3\r\n$4\r\nEVAL\r\n$18\r\nwhile true do end--\r\n$1\r\n0\r\n",
		"a huge frame for Kafka":      "\x7f\xff\xff\xff\x00\x03\x00\x00",
		"a negative frame for Kafka":  "\xff\xff\xff\xff",
		"an empty frame for Kafka":    "\x00\x00\x00\x00",
		"a strange key for Kafka":     "\x00\x00\x00\x0a\x7f\xff\x7f\xff\x00\x00\x00\x01\xff\xff",
		"a huge array for Kafka":      "\x00\x00\x00\x0e\x00\x03\x00\x00\x00\x00\x00\x01\xff\xff\x7f\xff\xff\xff",
	}
}

// hostileWait is the time for which a stranger waits for an answer.
const hostileWait = 100 * time.Millisecond

// send sends bytes over a new connection, waits for the answer for a while, and closes the connection. The
// server may close it at any time.
func send(at, text string) {
	c, err := net.DialTimeout("tcp", at, healthyWithin)
	if err != nil {
		return // mustListen reports it
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(healthyWithin))
	_, _ = io.WriteString(c, text)
	_ = c.SetReadDeadline(time.Now().Add(hostileWait))
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<20))
}

// mustListen fails the test at once if the port has no listener any more.
func (w *world) mustListen(when, at string) {
	w.Helper()
	c, err := net.DialTimeout("tcp", at, healthyWithin)
	if err != nil {
		w.Fatalf("%s: nothing listens on %s any more: %v\n%s", when, at, err, last(w.logged()))
	}
	_ = c.Close()
}

// raw sends bytes to the gateway, and returns all that it answers until it closes the connection.
func (w *world) raw(text string) string {
	w.Helper()
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "http://"), healthyWithin)
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(startWithin))
	_, _ = io.WriteString(c, text) // the gateway may close the connection before the end
	_ = c.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(io.LimitReader(c, answerShown))
	return string(got)
}
