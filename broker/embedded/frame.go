package embedded

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	maxRequest = 100 << 20 // Apache's socket.request.max.bytes
	sizeBytes  = 4
	headBytes  = sizeBytes + 2 // size, then the request's key
	minRequest = 8             // key, version, correlation id
)

// frameGuard follows the frames of a connection. kfake allocates whatever size
// a frame claims, and a request key it does not know panics, which in this
// process would end more than the broker: a browser that is pointed at the port
// ("GET " is 1.2 GB) must not.
type frameGuard struct {
	head [headBytes]byte
	have int
	left int // of the body
}

func (g *frameGuard) check(b []byte) error {
	for len(b) > 0 {
		if skip := min(g.left, len(b)); skip > 0 {
			g.left -= skip
			b = b[skip:]
			continue
		}
		g.head[g.have] = b[0]
		g.have++
		b = b[1:]
		if err := g.checkHead(); err != nil {
			return err
		}
	}
	return nil
}

func (g *frameGuard) checkHead() error {
	size := binary.BigEndian.Uint32(g.head[:])
	switch g.have {
	case sizeBytes:
		if size < minRequest || size > maxRequest {
			return fmt.Errorf("a frame of %d bytes is no Kafka request", size)
		}
	case headBytes:
		key := int16(binary.BigEndian.Uint16(g.head[sizeBytes:]))
		if kmsg.RequestForKey(key) == nil {
			return fmt.Errorf("kafka has no request with key %d", key)
		}
		g.have, g.left = 0, int(size)-(headBytes-sizeBytes)
	}
	return nil
}
