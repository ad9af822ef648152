//go:build slow

package crash

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
)

// tap passes bytes between a client and a server, and looks at each message of the client. At a
// write, the tap may stop the client before the server gets the request, or before the client gets
// the answer.
type tap struct {
	l     net.Listener
	to    string
	read  func(*bufio.Reader) (message []byte, write string, err error)
	look  func(write string, when moment) (pass bool)
	conns sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// moment says whether the fault happens before or after a write.
type moment string

const (
	before moment = "before"
	after  moment = "after"
)

func openTap(read func(*bufio.Reader) ([]byte, string, error), look func(write string, when moment) bool) (*tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &tap{l: l, read: read, look: look, open: map[net.Conn]struct{}{}}, nil
}

func (t *tap) addr() string { return t.l.Addr().String() }

// run connects clients to an address until close.
func (t *tap) run(to string) {
	t.to = to
	t.conns.Go(func() {
		for {
			c, err := t.l.Accept()
			if err != nil {
				return
			}
			t.conns.Go(func() { t.serve(c) })
		}
	})
}

func (t *tap) close() {
	t.mu.Lock()
	t.closed = true
	t.l.Close()
	for c := range t.open {
		c.Close()
	}
	t.mu.Unlock()
	t.conns.Wait()
}

func (t *tap) keep(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		c.Close()
		return false
	}
	t.open[c] = struct{}{}
	return true
}

func (t *tap) drop(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
	c.Close()
}

func (t *tap) serve(client net.Conn) {
	server, err := net.Dial("tcp", t.to)
	if err != nil || !t.keep(client) || !t.keep(server) {
		client.Close()
		return
	}
	p := &pair{tap: t, client: client, server: server}
	var answers sync.WaitGroup
	answers.Go(p.copyAnswers)
	p.requests()
	t.drop(server)
	t.drop(client)
	answers.Wait()
}

// pair is a client's connection and our connection to the server.
type pair struct {
	tap            *tap
	client, server net.Conn

	mu      sync.Mutex
	writing []string // writes that the server has received and not answered
}

func (p *pair) requests() {
	from := bufio.NewReaderSize(p.client, 1<<16)
	for {
		message, write, err := p.tap.read(from)
		if err != nil {
			return
		}
		if write != "" {
			if !p.tap.look(write, before) {
				return
			}
			p.mu.Lock()
			p.writing = append(p.writing, write)
			p.mu.Unlock()
		}
		if _, err := p.server.Write(message); err != nil {
			return
		}
	}
}

// copyAnswers does not parse the server's answers. The first bytes after a write may answer an
// earlier request. Then the write may be done or not; the test can stop the client in both cases.
func (p *pair) copyAnswers() {
	b := make([]byte, 1<<16)
	for {
		n, err := p.server.Read(b)
		if n > 0 {
			p.mu.Lock()
			done := p.writing
			p.writing = nil
			p.mu.Unlock()
			for _, write := range done {
				if !p.tap.look(write, after) {
					return
				}
			}
			if _, err := p.client.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.client.Close()
			}
			return
		}
	}
}
