package embedded

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func TestKeysExpire(t *testing.T) {
	s := start(t, Options{})
	r := redis.NewClient(&redis.Options{Addr: s.Redis()})
	defer r.Close()
	must(t, r.Set(t.Context(), "long", 1, time.Hour).Err())
	began := time.Now()
	must(t, r.Set(t.Context(), "short", 1, 300*time.Millisecond).Err())
	waitEffect(t, "the key has expired", func() bool { return r.Exists(t.Context(), "short").Val() == 0 })
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("300 ms took %v", took)
	}
	if left := r.TTL(t.Context(), "long").Val(); left < 59*time.Minute || left > time.Hour {
		t.Errorf("an hour's key has %v left", left)
	}
}

func TestNextTick(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0:                     tick,
		time.Millisecond:      tick,
		20 * time.Millisecond: time.Second,
		time.Second:           5 * time.Second, // a tick ages keys that were set just now, and reports of processes are valid for ten
	} {
		if got := nextTick(cost); got != want {
			t.Errorf("after %v: %v, want %v", cost, got, want)
		}
	}
}

// A late tick does not expire a recently set key.
func TestALateTick(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{90 * time.Millisecond: 90 * time.Millisecond, tick: tick, time.Minute: tick} {
		if got := ageTime(since, tick); got != want {
			t.Errorf("after %v keys age by %v, want %v", since, got, want)
		}
	}
}

// The answers to a pipeline come in few writes, and each of them comes.
func TestAnswersOfAPipelineAreJoined(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	c := redis.NewClient(&redis.Options{Addr: l.Addr().String(), PoolSize: 1})
	defer c.Close()
	writes := &writeCounter{}
	go func() {
		writes.Conn, _ = l.Accept() // an error makes the ping below fail
		miniredis.RunT(t).Server().ServeConn(&answerJoiner{Conn: writes})
	}()
	must(t, c.Ping(t.Context()).Err())
	before := writes.n.Load()
	p := c.TxPipeline()
	for i := range 100 {
		p.Incr(t.Context(), "n")
		p.Get(t.Context(), "n")
		if i == 50 {
			p.Get(t.Context(), "missing")
		}
	}
	all, err := p.Exec(t.Context())
	if err != redis.Nil || len(all) != 201 || all[200].(*redis.StringCmd).Val() != "100" {
		t.Fatalf("%d answers, %v: %v", len(all), err, all[len(all)-1])
	}
	if n := writes.n.Load() - before; n > 20 {
		t.Errorf("%d writes for 203 answers", n)
	}
}

type writeCounter struct {
	net.Conn
	n atomic.Int64
}

func (c *writeCounter) Write(p []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(p)
}

// Bytes of a stranger do not stop the process, with and without passwords. The four bytes *0 and a
// line end were an attack: miniredis panics at them.
func TestHostileCommands(t *testing.T) {
	for name, o := range map[string]Options{"open": {}, "with passwords": {Dir: t.TempDir(), Passwords: true}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o)
			for _, text := range []string{"*0\r\n", "*-1\r\n", "*1\r\n$-1\r\n", "*1\r\n$9223372036854775807\r\n", "*1\r\n$99999999999999999999\r\n", "*1\r\n$536870913\r\n",
				"*1048577\r\n", "*9223372036854775807\r\n", "*+1\r\n", "*1\n$4\nPING\n", "*1\r\n+PING\r\n", "PING\r\n", "GET / HTTP/1.1\r\n", "\r\n", "\n", "*\r\n", "*1\r\n$\r\n",
				strings.Repeat("*", 100)} {
				if got := tell(t, s.Redis(), text); !strings.HasPrefix(got, "-ERR Protocol error: ") || strings.Count(got, "\r\n") != 1 {
					t.Errorf("%q is answered by %q", text, got)
				}
			}
			password := ""
			if secret, err := o.withUsers(); o.Passwords && err == nil {
				password = secret.redis.Reveal()
			}
			c := redis.NewClient(&redis.Options{Addr: s.Redis(), Password: password})
			defer c.Close()
			must(t, c.Set(t.Context(), "k", strings.Repeat("x", 1<<20), 0).Err())
		})
	}
}

// Before the password, a client gets no answer but to the password, and can take little memory. The
// connection stays open, as with Redis.
func TestCommandsBeforeThePassword(t *testing.T) {
	o, err := Options{Dir: t.TempDir(), Passwords: true}.withUsers()
	must(t, err)
	s, password := start(t, o), o.redis.Reveal()
	for _, c := range []struct {
		text string
		want string // beginning of the last answer
	}{
		{command("PING"), "-NOAUTH"}, {command("HELLO", "3") + command("PING"), "-NOAUTH"}, {command("COMMAND"), "-NOAUTH"}, {command("CLIENT", "ID"), "-NOAUTH"},
		{command("CLUSTER", "NODES"), "-NOAUTH"}, {command("AUTH"), "-NOAUTH"}, {command("AUTH", "a", "b", "c"), "-NOAUTH"}, {command(""), "-NOAUTH"},
		{command("AUTH", "wrong"), "-WRONGPASS"}, {command("AUTH", "wrong") + command("PING"), "-NOAUTH"}, {command("PING") + command("AUTH", password) + command("PING"), "+PONG"},
		{command("HELLO", "3", "AUTH", "default", "wrong") + command("PING"), "-NOAUTH"},
		{command("AUTH", strings.Repeat("x", 257)), "-ERR Protocol error"}, {command(strings.Fields(strings.Repeat("AUTH ", 11))...), "-ERR Protocol error"},
		{command("AUTH", password) + command("SET", "k", strings.Repeat("x", 257)), "+OK"},
		{command("auth", "default", password) + command("PING"), "+PONG"},
		{command("hello", "2", "auth", "default", password, "SETNAME", "me") + command("ECHO", "hi"), "hi"},
	} {
		lines := strings.Split(strings.TrimSuffix(tell(t, s.Redis(), c.text), "\r\n"), "\r\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, c.want) {
			t.Errorf("%.60q is answered by %q, want %s", c.text, lines, c.want)
		}
	}
}

func command(words ...string) string {
	text := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	return text
}

// tell sends a text, closes its side, and returns all answers.
func tell(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte(text))
	must(t, err)
	_ = conn.(*net.TCPConn).CloseWrite() // the server may have closed it
	got, _ := io.ReadAll(conn)           // the server may close the connection before it has read everything
	return string(got)
}

// The guard lets pass only what miniredis reads as commands with names, in whatever pieces it comes,
// and keeps little of it.
func FuzzCommandGuard(f *testing.F) {
	for _, text := range []string{command("PING"), command("SET", "k", "v") + command("GET", "k"), command("AUTH", "pw") + command("PING"), "*0\r\n", "*1\r\n$-1\r\n", "*2\r\n$1\r\na\r\n$", "GET / HTTP/1.1\r\n"} {
		f.Add([]byte(text), uint8(3), false)
		f.Add([]byte(text), uint8(1), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint8, asks bool) {
		whole, pieces := commandGuard{}, commandGuard{}
		if asks {
			whole.password, pieces.password = "pw", "pw"
		}
		passed, err := whole.check(b)
		var cutErr error
		var cutPassed []byte
		for rest := b; len(rest) > 0 && cutErr == nil; {
			n := min(len(rest), int(cut)+1)
			var piece []byte
			piece, cutErr = pieces.check(rest[:n])
			cutPassed, rest = append(cutPassed, piece...), rest[n:]
		}
		if fmt.Sprint(err) != fmt.Sprint(cutErr) || err == nil && !bytes.Equal(passed, cutPassed) {
			t.Fatalf("whole %q %v, in pieces %q %v", passed, err, cutPassed, cutErr)
		}
		if !asks && err == nil && !bytes.Equal(passed, b) {
			t.Fatalf("%q is passed as %q", b, passed)
		}
		if kept := len(whole.line) + len(strings.Join(whole.words, "")); kept > maxLine+maxItemsBefore*(maxItemBefore+2) {
			t.Fatalf("it keeps %d bytes", kept)
		}
		if err != nil {
			return
		}
		for r := bufio.NewReader(bytes.NewReader(passed)); ; {
			words, err := readCommand(r)
			if err != nil {
				return // the rest is no whole command
			}
			if len(words) == 0 {
				t.Fatalf("%q reaches the server, with a command without a name", passed)
			}
		}
	})
}

// readCommand reads a command as miniredis does. An error means that there is no whole command.
func readCommand(r *bufio.Reader) (words []string, err error) {
	number := func() (n int, err error) {
		line, err := r.ReadString('\n')
		if err == nil {
			n, err = strconv.Atoi(line[1 : len(line)-2])
		}
		return n, err
	}
	n, err := number()
	for ; n > 0 && err == nil; n-- {
		var size int
		if size, err = number(); err == nil && size > maxItem {
			return nil, fmt.Errorf("an item of %d bytes", size)
		}
		word := make([]byte, min(size, 1<<20)+2)
		if err == nil {
			_, err = io.ReadFull(r, word)
		}
		words = append(words, string(word))
	}
	return words, err
}
