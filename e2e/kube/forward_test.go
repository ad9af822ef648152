//go:build cluster

package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// forward carries loopback connections to an address, because without TLS our client sends a token
// only to loopback.
type forward struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup
	stop     context.CancelFunc
}

func forwardTo(to string) (*forward, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for what goes to %s: %w", to, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	f := &forward{listener: l, to: to, stop: stop}
	f.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener was closed
			}
			f.running.Go(func() { f.carry(ctx, c) })
		}
	})
	return f, nil
}

func (f *forward) url() string { return "http://" + f.listener.Addr().String() }

// carry closes both connections when either has ended, so that the client sees the same as with a
// direct connection.
func (f *forward) carry(ctx context.Context, c net.Conn) {
	defer c.Close()
	d, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.to)
	if err != nil {
		return
	}
	defer d.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); d.Close() })()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(c, d) // any error means the end
		c.Close()
	})
	_, _ = io.Copy(d, c)
	d.Close()
	back.Wait()
}

func (f *forward) close() error {
	f.stop()
	err := f.listener.Close()
	f.running.Wait()
	return err
}
