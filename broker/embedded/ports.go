package embedded

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports below those that kernels give to outgoing connections: a server that is
// away for a moment finds its port free when it comes back, which else the next
// connection of any program may have taken meanwhile.
const (
	firstPort = 10_000
	ports     = 10_000
	portTries = 100
)

// listenAt calls listen with an address until it succeeds; with the very one
// unless that leaves the port to us.
func listenAt(addr string, listen func(addr string) error) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return listen(addr)
	}
	for range portTries {
		if listen(net.JoinHostPort(host, strconv.Itoa(firstPort+rand.IntN(ports)))) == nil {
			return nil
		}
	}
	return listen(addr) // and be told why not
}
