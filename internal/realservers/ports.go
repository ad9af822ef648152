package realservers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports below those that kernels give to outgoing connections: a server that
// is down for a restart finds its port free again.
const (
	firstPort = 20000
	ports     = 12000
)

// freePorts are n ports of an address of this machine that nobody listens on now.
func freePorts(host string, n int) ([]int, error) {
	var found []int
	for range 1000 {
		if len(found) == n {
			return found, nil
		}
		p := firstPort + rand.IntN(ports)
		l, err := net.Listen("tcp", at(host, p))
		if err != nil {
			continue
		}
		defer l.Close() // held until all are found, so that they differ
		found = append(found, p)
	}
	return nil, errors.New("find free ports: 1000 tries failed on " + host + fmt.Sprint(" between ", firstPort, " and ", firstPort+ports))
}

// loopback is where servers listen unless a test says otherwise.
const loopback = "127.0.0.1"

func at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
