package realservers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports below those that kernels give to outgoing connections: a server that
// is down for a restart finds its port free again. They are given out in blocks.
// Whoever has a block listens at its first port, so that of two test programs
// beside each other none chooses what the other has chosen, and is yet to use.
const (
	firstPort = 20000
	blocks    = 750
	blockSize = 16
)

// ports are some of a block, for as long as it is held.
type ports struct {
	all  []int
	held net.Listener
}

// takePorts takes n ports of an address of this machine that nobody listens on.
func takePorts(host string, n int) (*ports, error) {
	if n >= blockSize {
		return nil, fmt.Errorf("find free ports: %d are more than a block has", n)
	}
	for range 1000 {
		first := firstPort + rand.IntN(blocks)*blockSize
		l, err := net.Listen("tcp", at(host, first))
		if err != nil {
			continue
		}
		p := &ports{held: l}
		for len(p.all) < n && free(host, first+1+len(p.all)) {
			p.all = append(p.all, first+1+len(p.all))
		}
		if len(p.all) == n {
			return p, nil
		}
		if err := p.release(); err != nil {
			return nil, fmt.Errorf("find free ports: %w", err)
		}
	}
	return nil, errors.New("find free ports: 1000 tries failed on " + host + fmt.Sprint(" between ", firstPort, " and ", firstPort+blocks*blockSize))
}

func free(host string, port int) bool {
	l, err := net.Listen("tcp", at(host, port))
	return err == nil && l.Close() == nil
}

// release lets others have the block. Nobody has nothing to release.
func (p *ports) release() error {
	if p == nil {
		return nil
	}
	return p.held.Close()
}

// loopback is where servers listen unless a test says otherwise.
const loopback = "127.0.0.1"

func at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
