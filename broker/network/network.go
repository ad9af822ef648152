// Package network opens and accepts the connections of a process: those of the operating system,
// or those of the simulator in e2e/sim, which are in memory.
package network

import (
	"context"
	"net"
)

// Network makes the connections of a process. The zero value is the operating system's network.
type Network struct {
	// Dial opens a connection, as net.Dialer.DialContext does. If nil, the operating system does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Listen accepts connections, as net.ListenConfig.Listen does. If nil, the operating system does.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// Virtual reports whether the connections are in memory.
func (n Network) Virtual() bool { return n.Dial != nil }

// Dialer returns the function that opens connections; d applies only to the operating system's.
func (n Network) Dialer(d net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	if n.Dial != nil {
		return n.Dial
	}
	return d.DialContext
}

// ListenTCP accepts connections at host:port.
func (n Network) ListenTCP(ctx context.Context, address string) (net.Listener, error) {
	if n.Listen != nil {
		return n.Listen(ctx, "tcp", address)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}
