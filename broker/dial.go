package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"tidemill.dev/broker/internal/wire"
)

// dialTimeout bounds the making of one connection: TCP, TLS and SASL.
const dialTimeout = 5 * time.Second

// dialer makes every connection to Kafka, kafka-go's included. What it returns
// is secured and authenticated.
type dialer struct {
	security Security
	clientID string
	seeds    []string
	tcp      net.Dialer

	mu    sync.Mutex
	known []string // the servers' addresses, as Kafka last named them
}

// seedAddr stands, before kafka-go, for whichever server answers. kafka-go
// would only ever try the addresses that the user gave, and a user who named
// one of three servers would be cut off when that one stops.
type seedAddr []string

// Network tells this address from a server's own.
func (seedAddr) Network() string { return "any" }

// String is for errors; there is no comma in it, at which kafka-go would split.
func (a seedAddr) String() string { return strings.Join(a, " or ") }

// learn remembers where the servers are.
func (d *dialer) learn(servers []wire.BrokerNode) {
	known := make([]string, len(servers))
	for i, s := range servers {
		known[i] = net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(known) > 0 {
		d.known = known
	}
}

// candidates are the addresses to try for any server: those given, in an order
// that spreads many clients, then those that Kafka has named.
func (d *dialer) candidates() []string {
	d.mu.Lock()
	known := slices.Clone(d.known)
	d.mu.Unlock()
	seeds := slices.Clone(d.seeds)
	rand.Shuffle(len(seeds), func(i, j int) { seeds[i], seeds[j] = seeds[j], seeds[i] })
	rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	given := func(address string) bool { return slices.Contains(seeds, address) }
	return append(seeds, slices.DeleteFunc(known, given)...)
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if network != seedAddr(nil).Network() {
		return d.dialOne(ctx, address)
	}
	var failed []error
	all := d.candidates()
	for i, address := range all {
		conn, err := d.dialShare(ctx, address, len(all)-i)
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(failed...)
}

// dialShare leaves their share of the time to the addresses after this one,
// which a server that does not even refuse would otherwise use up.
func (d *dialer) dialShare(ctx context.Context, address string, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	return d.dialOne(ctx, address)
}

func (d *dialer) dialOne(ctx context.Context, address string) (net.Conn, error) {
	raw, err := d.tcp.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w%s", err, d.dialHint(address))
	}
	conn, err := d.secure(ctx, raw, address)
	if ended := ctx.Err(); err == nil && ended != nil { // a deadline that struck at the very end may still be set on it
		err = fmt.Errorf("connect to Kafka at %s: %w", address, ended)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

func (d *dialer) secure(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	var err error
	if d.security.TLS {
		if conn, err = d.security.startTLS(ctx, conn, address); err != nil {
			return nil, err
		}
	}
	if d.security.Mechanism != "" {
		if err := d.security.authenticate(ctx, conn, d.clientID, address); err != nil {
			return nil, err
		}
	}
	return conn, nil
}

// dialHint tells an address that was given to us from one that Kafka sent us
// on to, which is a newcomer's commonest trouble with Kafka in a container.
func (d *dialer) dialHint(address string) string {
	if slices.Contains(d.seeds, address) {
		return ": is Kafka running there? Say where it is with --kafka or TIDEMILL_KAFKA"
	}
	return fmt.Sprintf(": Kafka itself named this address: set its advertised.listeners to one that this machine can reach (%v answered)", d.seeds)
}

// boundBy makes reads and writes on a connection end with the context. The
// returned function undoes it.
func boundBy(ctx context.Context, conn net.Conn) func() {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if stop() {
			_ = conn.SetDeadline(time.Time{})
		}
	}
}

// spoken is one request that we speak, in the lowest version that does.
type spoken struct {
	api     protocol.ApiKey
	version int16
}

// needs is what a Kafka must understand: Apache Kafka does since 2.5, which
// brought stable offsets (OffsetFetch 7) and fencing by group metadata
// (TxnOffsetCommit 3).
func needs() []spoken {
	return []spoken{
		{protocol.Produce, 8}, {protocol.Fetch, 11}, {protocol.ListOffsets, 5}, {protocol.Metadata, 8},
		{protocol.OffsetCommit, 7}, {protocol.OffsetFetch, 7}, {protocol.FindCoordinator, 1},
		{protocol.JoinGroup, 5}, {protocol.SyncGroup, 3}, {protocol.Heartbeat, 3}, {protocol.LeaveGroup, 1},
		{protocol.InitProducerId, 1}, {protocol.AddPartitionsToTxn, 1}, {protocol.AddOffsetsToTxn, 1},
		{protocol.TxnOffsetCommit, 3}, {protocol.EndTxn, 1},
		{protocol.CreateTopics, 2}, {protocol.CreatePartitions, 0},
		{protocol.DescribeConfigs, 1}, {protocol.IncrementalAlterConfigs, 0},
	}
}

// probe asks each address in turn until one answers, and checks what it speaks.
func (d *dialer) probe(ctx context.Context) error {
	var failed []error
	for _, address := range d.seeds {
		err := d.probeOne(ctx, address)
		if err == nil {
			return nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

func (d *dialer) probeOne(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer boundBy(ctx, conn)()
	pc := protocol.NewConn(&modest{Conn: conn}, d.clientID)
	answer, err := pc.RoundTrip(new(apiversions.Request))
	if err != nil {
		return fmt.Errorf("ask Kafka at %s what it speaks: %w%s", address, err, d.probeHint(err))
	}
	res := answer.(*apiversions.Response)
	if err := codeError(res.ErrorCode, ""); err != nil {
		return fmt.Errorf("ask Kafka at %s what it speaks: %w", address, err)
	}
	if err := checkSpoken(address, res.ApiKeys); err != nil {
		return err
	}
	// A Kafka that wants a user answers strangers, but only what it speaks.
	pc.SetVersions(map[protocol.ApiKey]int16{protocol.Metadata: 8})
	answer, err = pc.RoundTrip(&metadata.Request{TopicNames: []string{}})
	if err != nil {
		return fmt.Errorf("ask Kafka at %s for its brokers: %w%s", address, err, d.userHint())
	}
	d.learn(serversOf(answer.(*metadata.Response)))
	return nil
}

func serversOf(m *metadata.Response) []wire.BrokerNode {
	all := make([]wire.BrokerNode, len(m.Brokers))
	for i, s := range m.Brokers {
		all[i] = wire.BrokerNode{ID: s.NodeID, Host: s.Host, Port: s.Port}
	}
	return all
}

func (d *dialer) userHint() string {
	if d.security.Mechanism == "" {
		return ": it may want a user: give a SASL mechanism, a user and a password file"
	}
	return ""
}

func (d *dialer) probeHint(err error) string {
	switch {
	case toldByPeer(err):
		return tlsHint(err) // with TLS 1.3 a refused certificate shows only now
	case !d.security.TLS:
		return ": is this Kafka? It may expect TLS: turn TLS on (--kafka-tls)"
	}
	return ": is this Kafka?"
}

// checkSpoken says which of our needs a broker does not meet.
func checkSpoken(address string, offered []apiversions.ApiKeyResponse) error {
	ranges := make(map[protocol.ApiKey]apiversions.ApiKeyResponse, len(offered))
	for _, o := range offered {
		ranges[protocol.ApiKey(o.ApiKey)] = o
	}
	var missing []string
	for _, n := range needs() {
		has, ok := ranges[n.api]
		switch {
		case !ok:
			missing = append(missing, n.api.String())
		case has.MaxVersion < n.version:
			missing = append(missing, fmt.Sprintf("%s %d (has %d)", n.api, n.version, has.MaxVersion))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("use Kafka at %s: it does not speak %s: upgrade to Apache Kafka 2.5 or later",
		address, strings.Join(missing, ", "))
}

// codeError turns a protocol's error code into an error, with what the broker
// said about it.
func codeError(code int16, message string) error {
	switch {
	case code == 0:
		return nil
	case message == "":
		return kafka.Error(code)
	}
	return fmt.Errorf("%w: %s", kafka.Error(code), message)
}

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
