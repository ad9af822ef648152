package embedded

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"
)

func TestListenAt(t *testing.T) {
	refused := errors.New("refused")
	for addr, want := range map[string]int{"127.0.0.1:0": portTries + 1, "127.0.0.1:9092": 1, "127.0.0.1": 1} {
		var asked []string
		err := listenAt(addr, func(addr string) error {
			asked = append(asked, addr)
			return refused
		})
		if err != refused || len(asked) != want || asked[want-1] != addr {
			t.Errorf("%s: %v after %d addresses, the last %s", addr, err, len(asked), asked[len(asked)-1])
		}
		if slices.Contains(asked[:want-1], addr) {
			t.Errorf("%s was left to the kernel at once", addr)
		}
	}
	taken := 0
	err := listenAt("127.0.0.1:0", func(string) error {
		if taken++; taken < 3 {
			return refused
		}
		return nil
	})
	if err != nil || taken != 3 {
		t.Errorf("%v after %d", err, taken)
	}
}

// Free ports are not chosen by the kernel: another process could get such a port before a
// restarted server listens on it again.
func TestAFreePortIsNoneOfTheKernels(t *testing.T) {
	s := start(t, Options{Brokers: 3})
	for _, addr := range append(s.Cluster().ListenAddrs(), s.Redis()) {
		_, text, err := net.SplitHostPort(addr)
		must(t, err)
		if port, err := strconv.Atoi(text); err != nil || port < firstPort || port >= firstPort+ports {
			t.Errorf("listens on %s: %v", addr, err)
		}
	}
}

// While one server restarts, another server of the process does not take its port.
func TestAPortIsGivenAgainAfterAllOthers(t *testing.T) {
	given := map[string]bool{}
	for range ports / 2 {
		must(t, listenAt(anyPort, func(addr string) error {
			if given[addr] {
				t.Errorf("%s was given twice within %d ports", addr, len(given))
			}
			given[addr] = true
			return nil
		}))
	}
}
