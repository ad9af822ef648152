package vnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair returns both ends of a connection from host a to host b.
func pair(t *testing.T, n *Net) (a, b *Host, client, server net.Conn) {
	t.Helper()
	a, b = n.Host("a"), n.Host("b")
	l, err := b.Listen(t.Context(), "tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if client, err = a.Dial(t.Context(), "tcp", b.IP()+":80"); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b, client, server
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Error(err)
	}
}

// reads checks the next bytes, and the error after them unless it is nil.
func reads(t *testing.T, c net.Conn, text string, end error) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Errorf("read %q, %v, want %q", b, err, text)
	}
	if end == nil {
		return
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, end) {
		t.Errorf("then %v, want %v", err, end)
	}
}

func TestBytesArriveInOrderAndLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, c, s := pair(t, New(Options{Fault: func(m *Message) Fault { return Fault{Delay: time.Second / time.Duration(m.Number)} }}))
		began := time.Now()
		send(t, c, "first ")
		send(t, c, "second")
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		reads(t, s, "first second", io.EOF)
		if took := time.Since(began); took != time.Second {
			t.Errorf("arrived after %v", took)
		}
		if _, err := s.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to a closed end: %v", err)
		}
	})
}

func TestADeadlineEndsARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, c, s := pair(t, New(Options{}))
		if err := s.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if err := s.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		send(t, c, "still open")
		reads(t, s, "still open", nil)
	})
}

func TestAKilledHostSendsWhatItHasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		a, b, c, s := pair(t, n)
		a.KillAfter(1)
		send(t, c, "last")
		if _, err := c.Write([]byte("too late")); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		<-a.Killed()
		reads(t, s, "last", syscall.ECONNRESET)
		if _, err := a.Dial(t.Context(), "tcp", b.IP()+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a dead host dials: %v", err)
		}
		b.Kill()
		if _, err := n.Host("a").Dial(t.Context(), "tcp", b.IP()+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a dead host answers: %v", err)
		}
	})
}

func TestCutsLoseTheMessageOrItsAnswer(t *testing.T) {
	for cut, text := range map[Cut]string{CutBefore: "", CutAfter: "request"} {
		synctest.Test(t, func(t *testing.T) {
			_, _, c, s := pair(t, New(Options{Fault: func(*Message) Fault { return Fault{Cut: cut} }}))
			_, err := io.WriteString(c, "request")
			if (err != nil) != (cut == CutBefore) {
				t.Errorf("cut %d: %v", cut, err)
			}
			reads(t, s, text, syscall.ECONNRESET)
			reads(t, c, "", syscall.ECONNRESET)
		})
	}
}

func TestABlockedLinkHoldsMessagesOfOneDirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		a, b, c, s := pair(t, n)
		n.Block("a", "b")
		began := time.Now()
		time.AfterFunc(time.Minute, func() { n.Heal("a", "b") })
		send(t, s, "from b")
		reads(t, c, "from b", nil)
		send(t, c, "from a")
		if _, err := a.Dial(context.Background(), "tcp", b.IP()+":80"); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("dial over a blocked link: %v", err)
		}
		reads(t, s, "from a", nil)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("arrived after %v", took)
		}
	})
}
