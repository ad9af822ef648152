package broker

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// mostAtFirst is more than a Kafka answers to what a new connection is asked.
const mostAtFirst = 1 << 20

// modest is a connection on which it is not yet known who answers. kafka-go
// believes the lengths in an answer, and those in the text of an HTTP server
// have it set gigabytes aside; so an answer that is longer than Kafka's is
// refused here.
type modest struct {
	net.Conn
	head [4]byte // the answer's length, as Kafka has it before each
	told int     // bytes of head that were handed on
	left int     // bytes of the answer behind it
}

func (m *modest) Read(b []byte) (int, error) {
	if m.left == 0 {
		if err := m.begin(); err != nil {
			return 0, err
		}
	}
	if m.told < len(m.head) {
		n := copy(b, m.head[m.told:])
		m.told += n
		return n, nil
	}
	n, err := m.Conn.Read(b[:min(len(b), m.left)])
	m.left -= n
	return n, err
}

// begin reads how long the next answer is.
func (m *modest) begin() error {
	if _, err := io.ReadFull(m.Conn, m.head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(m.head[:]))
	if size <= 0 || size > mostAtFirst {
		return fmt.Errorf("%w: the answer %q… is none of Kafka's", io.ErrUnexpectedEOF, m.head[:])
	}
	m.told, m.left = 0, int(size)
	return nil
}
