package realservers

import (
	"net"
	"testing"
)

// Once ports are chosen no other test chooses them, even before their server runs.
func TestPortsAreChosenOnce(t *testing.T) {
	const each, takers = 15, 40
	seen := map[int]bool{}
	for range takers {
		p, err := takePorts(loopback, each)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.release(); err != nil {
				t.Error(err)
			}
		})
		for _, port := range p.all {
			if seen[port] {
				t.Errorf("%d is chosen twice", port)
			}
			seen[port] = true
			l, err := net.Listen("tcp", at(loopback, port))
			if err != nil {
				t.Errorf("it is not free: %v", err)
				continue
			}
			l.Close()
		}
	}
	if len(seen) != each*takers {
		t.Errorf("there are %d ports", len(seen))
	}
	if _, err := takePorts(loopback, blockSize); err == nil {
		t.Error("there are more ports than a block has")
	}
}
