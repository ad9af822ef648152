package gateway

import (
	"bytes"
	"container/list"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
)

// porch is the listener. When too many are inside, who comes takes the place of
// a connection on which nobody asks for anything; where there is none he is
// turned away, at once and with an answer: who waited would learn nothing.
type porch struct {
	net.Listener
	most   int64
	answer string // to those who are turned away; empty where it could not be read, for want of TLS
	turned prometheus.Counter
	inside atomic.Int64
	away   chan struct{} // one for each connection that is being turned away
	leave  sync.WaitGroup

	mu   sync.Mutex
	idle list.List // of *visitor, the longest idle first
}

func newPorch(l net.Listener, most int, plain bool, turned prometheus.Counter) *porch {
	p := &porch{Listener: l, most: int64(most), turned: turned, away: make(chan struct{}, turnedAtOnce)}
	if plain {
		p.answer = turnedAnswer()
	}
	return p
}

const (
	turnedAtOnce = 64
	turnedFor    = 500 * time.Millisecond
)

// turnedAnswer is what they read. It goes past net/http, whose handlers have no
// part in it.
func turnedAnswer() string {
	body, _ := json.Marshal(unavailable("too many connections are open: come again a little later")) // strings and numbers cannot fail
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nRetry-After: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		api.ProblemType, retryAfter, len(body), body)
}

// Accept lets the next one in.
func (l *porch) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.inside.Add(1) <= l.most || l.makeRoom() {
			return &visitor{TCPConn: c.(*net.TCPConn), porch: l}, nil
		}
		l.inside.Add(-1)
		l.turned.Inc()
		l.turnAway(c.(*net.TCPConn))
	}
}

// settled is how long a connection is idle before it may have to go. One that
// was answered just now is likely to ask again, and its request, already on its
// way, would be lost.
const settled = time.Second

// makeRoom closes the connection that has been idle for longest, if there is
// one: ten thousand of one host that are kept open for nothing must not keep
// others out. Its client opens another when it needs one, as it does when a
// connection is idle for too long.
func (l *porch) makeRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.idle.Front()
	if first == nil {
		return false
	}
	v := first.Value.(*visitor)
	if time.Since(v.since) < settled {
		return false
	}
	l.idle.Remove(first)
	v.idle = nil
	_ = v.Close()
	return true
}

// connState is what net/http calls when the state of a connection changes.
func connState(c net.Conn, state http.ConnState) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	v, ok := c.(*visitor)
	if !ok {
		return
	}
	l := v.porch
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.idle != nil {
		l.idle.Remove(v.idle)
		v.idle = nil
	}
	if state == http.StateIdle {
		v.since, v.idle = time.Now(), l.idle.PushBack(v)
	}
}

// turnAway answers and hangs up. What the caller has sent has to be read before
// that, or the kernel takes our answer back; but only some of them are worth a
// goroutine.
func (l *porch) turnAway(c *net.TCPConn) {
	select {
	case l.away <- struct{}{}:
	default:
		_ = c.Close() // nobody hears of it
		return
	}
	l.leave.Go(func() {
		defer func() { <-l.away }()
		defer c.Close()
		if c.SetDeadline(time.Now().Add(turnedFor)) != nil || l.answer == "" {
			return
		}
		if _, err := io.WriteString(c, l.answer); err == nil && c.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(c, smallBody)) // until it hangs up, or that long
		}
	})
}

// Close stops listening and waits for those who are being turned away.
func (l *porch) Close() error {
	err := l.Listener.Close()
	l.leave.Wait()
	return err
}

func (l *porch) count() float64 { return float64(l.inside.Load()) }

// visitor is a connection that is inside.
type visitor struct {
	*net.TCPConn
	porch *porch
	left  atomic.Bool

	idle  *list.Element // in the porch's list; under its mu, as is since
	since time.Time     // it is idle
}

// Close closes the connection and makes room for another.
func (v *visitor) Close() error {
	if v.left.CompareAndSwap(false, true) {
		v.porch.inside.Add(-1)
	}
	return v.TCPConn.Close()
}

// certificate is the pair of files that the door shows. They are looked at when
// somebody comes, at most once a second: that finds a ConfigMap's swapped link
// and an editor's renamed file alike. A pair that does not fit together, for one
// of its files is still being written perhaps, leaves the one before in use.
type certificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	looked    time.Time
	cert, key []byte // as last read
	pair      *tls.Certificate
	fault     error // why what is there now is not in use
}

const lookEvery = time.Second

func openCertificate(certFile, keyFile string) (*certificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("serve HTTPS: a certificate and its key are needed, and one of the files is not named")
	}
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if c.look(time.Now()); c.fault != nil {
		return nil, c.fault
	}
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, _ := c.look(time.Now())
			return pair, nil
		},
	}
}

// look reads the files again, unless that was a moment ago.
func (c *certificate) look(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.looked.IsZero() && now.Sub(c.looked) < lookEvery {
		return c.pair, c.fault
	}
	c.looked = now
	cert, err := os.ReadFile(c.certFile)
	key, keyErr := os.ReadFile(c.keyFile)
	if err = errors.Join(err, keyErr); err != nil {
		c.fault = fmt.Errorf("read the door's certificate: %w", err)
		return c.pair, c.fault
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		c.fault = nil
		return c.pair, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		c.fault = fmt.Errorf("load the door's certificate %s with its key %s: %w", c.certFile, c.keyFile, err)
		return c.pair, c.fault
	}
	c.cert, c.key, c.pair, c.fault = cert, key, &pair, nil
	return c.pair, nil
}

// check is the certificate's part of readiness.
func (c *certificate) check(now time.Time) api.Check {
	pair, fault := c.look(now)
	until := pair.Leaf.NotAfter
	switch {
	case now.After(until):
		return api.Check{Name: "door", Status: api.Degraded, Detail: fmt.Sprintf("%s expired on %s: renew it", c.certFile, until.Format(time.RFC3339))}
	case fault != nil:
		return api.Check{Name: "door", Status: api.Degraded, Detail: fmt.Sprintf("the certificate before stays in use: %v", fault)}
	}
	return api.Check{Name: "door", Status: api.OK, Detail: "certificate until " + until.Format(time.RFC3339)}
}
