package embedded

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
)

// A key may live longer than its TTL by a tick and a tick's delay, and may miss a tick. Every tick
// visits all keys under the server's lock. So ticks are rarer with many keys, and take about
// 1/tickShare of the time. A tick ages also keys that were set just now. So it comes at least every
// longestTick, because leases and reports of processes are valid for ten seconds.
const (
	tick        = 100 * time.Millisecond
	longestTick = 5 * time.Second
	tickShare   = 50
)

// redisServer is miniredis on a listener of ours.
type redisServer struct {
	*miniredis.Miniredis
	listener  net.Listener
	password  config.Secret
	strangers strangers
	accepts   sync.WaitGroup
}

func startRedis(o Options) (*redisServer, error) {
	if err := checkHost(o.Redis, o.Public); err != nil {
		return nil, fmt.Errorf("listen for redis: %w", err)
	}
	r := &redisServer{Miniredis: miniredis.NewMiniRedis(), password: o.redis}
	if !o.redis.IsZero() {
		r.RequireAuth(o.redis.Reveal())
	}
	err := listenAt(o.Redis, func(addr string) (err error) {
		r.listener, err = o.Network.ListenTCP(context.Background(), addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for redis: %w; give another address, or port 0 for a free one", err)
	}
	if o.Dir != "" {
		if err := restore(r.Miniredis, o.Dir, build()); err != nil {
			return nil, errors.Join(err, r.listener.Close())
		}
	}
	starter, err := r.Dial() // starts miniredis without a second listener
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start redis: %w", err), r.listener.Close())
	}
	_ = starter.Close()
	r.accepts.Go(r.accept)
	return r, nil
}

// accept hands connections to miniredis until close.
func (r *redisServer) accept() {
	for {
		c, err := r.listener.Accept()
		switch {
		case err == nil:
			r.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptAgain)
		}
	}
}

// admit hands a connection to miniredis, if there is room for one more client that has given no password.
func (r *redisServer) admit(c net.Conn) {
	a := &answerJoiner{Conn: c, guard: commandGuard{password: r.password.Reveal()}}
	if a.guard.password != "" {
		if a.stranger = r.strangers.enter(c); a.stranger == nil {
			_ = c.Close()
			return
		}
	}
	r.Server().ServeConn(a)
}

// close waits until every connection is closed.
func (r *redisServer) close() {
	_ = r.listener.Close() // ends accept also after an error
	r.accepts.Wait()
	r.Miniredis.Close()
}

// moveTime advances miniredis's clock until the context ends, so that keys expire;
// miniredis does not advance it. In virtual time miniredis follows the clock itself, because ticks
// would make a virtual week take half a minute. It looks at all keys before each command then.
func (r *redisServer) moveTime(ctx context.Context, virtual bool) {
	if virtual {
		r.ClockTTL(true)
		return
	}
	last, due := time.Now(), tick
	t := time.NewTimer(due)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		r.FastForward(ageTime(now.Sub(last), due))
		last, due = now, nextTick(time.Since(now))
		t.Reset(due)
	}
}

// ageTime returns the time by which a tick ages all keys, even recently set ones. If a
// tick is late on a busy machine, a lease of half a second that was taken in the meantime
// must not expire at once.
func ageTime(since, due time.Duration) time.Duration { return min(since, due) }

func nextTick(cost time.Duration) time.Duration { return min(max(tick, tickShare*cost), longestTick) }

// answerJoiner joins the answers to a pipeline's commands. miniredis writes each on its own, which costs
// a system call each. While a goroutine of miniredis waits for more commands, answers are sent at
// once. Otherwise there are more commands, and the answers so far are sent with the next.
type answerJoiner struct {
	net.Conn
	guard    commandGuard
	stranger *stranger   // nil if clients need no password
	passed   []byte      // bytes that the guard has passed and Read has not returned
	mu       retry.Mutex // held while answers are sent
	waits    bool        // a goroutine reads from the connection
	answers  []byte
	err      error
}

// joinedBytes is how many bytes of answers are kept at most.
const joinedBytes = 64 << 10

// Read sends the answers that are left, and reads. If the guard refuses a command, Read answers it and
// closes the connection.
func (a *answerJoiner) Read(p []byte) (n int, err error) {
	for len(a.passed) == 0 {
		if err := a.setWaits(true); err != nil {
			return 0, err
		}
		if n, err = a.Conn.Read(p); n == 0 && err != nil {
			return 0, err // answers are still sent at once
		}
		unknown := a.guard.password != ""
		if a.passed, err = a.guard.check(p[:n]); err != nil {
			_, _ = a.Write([]byte("-" + err.Error() + "\r\n")) // the client may have gone
			return 0, closeWith(a.Conn, err)
		}
		if unknown && a.guard.password == "" {
			a.stranger.leave()
		}
	}
	_ = a.setWaits(false) // sends nothing
	n = copy(p, a.passed)
	a.passed = a.passed[n:]
	return n, nil
}

// Close closes the connection; miniredis may call it twice.
func (a *answerJoiner) Close() error {
	a.stranger.leave()
	return a.Conn.Close()
}

func (a *answerJoiner) setWaits(to bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = to
	return a.send()
}

// Write keeps the answer, or sends it if no further command has come.
func (a *answerJoiner) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = append(a.answers, p...)
	return len(p), a.send()
}

// send sends what is kept if it must not wait. Called with the lock held.
func (a *answerJoiner) send() error {
	if a.err != nil || len(a.answers) == 0 || !a.waits && len(a.answers) < joinedBytes {
		return a.err
	}
	_, a.err = a.Conn.Write(a.answers)
	a.answers = a.answers[:0]
	return a.err
}

// The limits of Redis itself: proto-max-bulk-len, and the items of a command. Before the password
// they are as small as a command with a password allows.
const (
	maxItem        = 512 << 20
	maxItems       = 1 << 20
	maxItemBefore  = 256
	maxItemsBefore = 10
	maxLine        = 32 // kind and number of an item, with the line end
)

// refusal is an answer of Redis after which the connection is closed.
type refusal string

// Error returns the answer without the sign of an error.
func (r refusal) Error() string { return string(r) }

func refusef(format string, args ...any) error {
	return refusal("ERR Protocol error: " + fmt.Sprintf(format, args...))
}

// commandGuard reads the commands of a connection before miniredis does. miniredis panics at a command
// without a name and at an item with a huge length, which would end this whole process. It also
// obeys some commands of a client that has given no password.
type commandGuard struct {
	password string   // password that the client still has to give; empty for none
	items    int      // items of the present command that are still to come
	left     int      // bytes of the present item that are still to come, with its line end
	line     []byte   // beginning of the present line
	words    []string // items of the present command, until the client has given the password
	passed   []byte   // commands for the server, until then
}

// check returns the bytes for the server, or an error before the first bytes that must not reach it.
// Until the client has given the password, these bytes are whole commands.
func (g *commandGuard) check(b []byte) (passed []byte, err error) {
	g.passed = nil
	for rest := b; len(rest) > 0; {
		before := g.password != ""
		n, err := g.take(rest)
		if err != nil {
			return nil, err
		}
		if rest = rest[n:]; before && g.password == "" {
			b = rest // the last command was with those that are passed
		}
	}
	if g.password != "" {
		b = nil
	}
	if g.passed == nil {
		return b, nil
	}
	return append(g.passed, b...), nil
}

// take reads the next part of a command, and returns its length.
func (g *commandGuard) take(b []byte) (n int, err error) {
	if g.left > 0 {
		n = min(g.left, len(b))
		if g.password != "" {
			text := b[:max(0, min(n, g.left-len("\r\n")))]
			g.words[len(g.words)-1] += string(text)
		}
		if g.left -= n; g.left == 0 {
			g.endItem()
		}
		return n, nil
	}
	n = bytes.IndexByte(b, '\n') + 1
	whole := n > 0
	if !whole {
		n = len(b)
	}
	if len(g.line)+n > maxLine {
		return n, refusef("a line is too long; send each command as an array of bulk strings")
	}
	if whole && len(g.line) == 0 { // nearly always
		return n, g.endLine(b[:n])
	}
	if g.line = append(g.line, b[:n]...); whole {
		err = g.endLine(g.line)
		g.line = g.line[:0]
	}
	return n, err
}

// endLine reads the line before a command, *ITEMS, or the line before an item, $BYTES.
func (g *commandGuard) endLine(line []byte) error {
	items, item := maxItems, maxItem
	if g.password != "" {
		items, item = maxItemsBefore, maxItemBefore
	}
	if g.items == 0 {
		n, err := numberAfter('*', line, 1, items)
		g.items, g.words = n, g.words[:0]
		return err
	}
	n, err := numberAfter('$', line, 0, item)
	g.left = n + len("\r\n")
	if g.password != "" {
		g.words = append(g.words, "")
	}
	return err
}

// numberAfter returns the number in a line after its kind.
func numberAfter(kind byte, line []byte, least, most int) (n int, err error) {
	text, ended := bytes.CutSuffix(line, []byte("\r\n"))
	valid := ended && len(text) > 1 && text[0] == kind
	for i := 1; valid && i < len(text) && n <= most; i++ {
		valid = text[i] >= '0' && text[i] <= '9'
		n = n*10 + int(text[i]-'0')
	}
	switch {
	case !valid:
		return 0, refusef("expected '%c' and a number; send each command as an array of bulk strings", kind)
	case n < least || n > most:
		return 0, refusef("the number after '%c' is not from %d to %d", kind, least, most)
	}
	return n, nil
}

// endItem ends an item. Until the client has given the password, the server gets only commands that may
// give it, and PING instead of each other command. miniredis answers PING with NOAUTH.
func (g *commandGuard) endItem() {
	if g.items--; g.items > 0 || g.password == "" {
		return
	}
	name := strings.ToUpper(g.words[0])
	given, ok := passwordIn(name, g.words[1:])
	if !ok && name != "HELLO" && name != "QUIT" {
		g.words = append(g.words[:0], "PING")
	}
	g.passed = appendCommand(g.passed, g.words)
	if ok && subtle.ConstantTimeCompare([]byte(given), []byte(g.password)) == 1 {
		g.password, g.words = "", nil
	}
}

func appendCommand(b []byte, words []string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

// passwordIn returns the password that a command gives: AUTH [USER] PASSWORD, or HELLO VERSION AUTH
// USER PASSWORD with more options.
func passwordIn(name string, args []string) (string, bool) {
	switch {
	case name == "AUTH" && (len(args) == 1 || len(args) == 2):
		return args[len(args)-1], true
	case name == "HELLO" && len(args) >= 4 && strings.EqualFold(args[1], "AUTH"):
		return args[3], true
	}
	return "", false
}
