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
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/network"
)

// dialTimeout limits the time for one connection: TCP, TLS and SASL.
const dialTimeout = 5 * time.Second

// dialer makes every connection to Kafka, also those of kafka-go. Its connections are secured and
// authenticated.
type dialer struct {
	security Security
	clientID string
	seeds    []string
	network  network.Network

	mu    sync.Mutex
	known []string // addresses of the servers from Kafka's latest answer

	hasTopicIDs atomic.Bool // whether Kafka knows the ids of topics
}

// seedAddr is the address that we give to kafka-go. It means any server that answers. kafka-go
// itself would try only the addresses that the user gave. A user who names one of three servers
// would then be cut off when that server stops.
type seedAddr []string

// Network distinguishes this address from that of a single server.
func (seedAddr) Network() string { return "any" }

// String is used in errors. It has no comma, because kafka-go would split it there.
func (a seedAddr) String() string { return strings.Join(a, " or ") }

// storeAddresses stores the addresses of the servers.
func (d *dialer) storeAddresses(servers []wire.BrokerNode) {
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

// candidates returns the addresses to try: first those that the user gave, in random order so that
// clients spread, then those that Kafka has named.
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

// dialShare limits the time for one address, so that enough time is left for the other addresses. A
// server that does not answer at all would otherwise use up all the time.
func (d *dialer) dialShare(ctx context.Context, address string, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	return d.dialOne(ctx, address)
}

func (d *dialer) dialOne(ctx context.Context, address string) (net.Conn, error) {
	raw, err := d.network.Dialer(net.Dialer{})(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w%s", err, d.dialHint(address))
	}
	conn, err := d.secure(ctx, raw, address)
	if ended := ctx.Err(); err == nil && ended != nil { // a deadline that passed at the very end may still be set on the connection
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

// dialHint distinguishes an address that the user gave from one that Kafka named. A wrong name from
// Kafka is the most common problem of newcomers with Kafka in a container.
func (d *dialer) dialHint(address string) string {
	if slices.Contains(d.seeds, address) {
		return ": is Kafka running there? Say where it is with --kafka or TIDEMILL_KAFKA"
	}
	return fmt.Sprintf(": Kafka itself named this address: set its advertised.listeners to one that this machine can reach (%v answered)", d.seeds)
}

// boundBy ends reads and writes on a connection when the context ends. The returned function
// removes this limit.
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

// requestVersion is a request that we use, in the lowest version that we can use.
type requestVersion struct {
	api     protocol.ApiKey
	version int16
}

// neededRequests lists the requests that a Kafka must support. Apache Kafka supports them since
// 2.5, which brought stable offsets (OffsetFetch 7) and fencing by group metadata (TxnOffsetCommit
// 3).
func neededRequests() []requestVersion {
	return []requestVersion{
		{protocol.Produce, 8}, {protocol.Fetch, 11}, {protocol.ListOffsets, 5}, {protocol.Metadata, 8},
		{protocol.OffsetCommit, 7}, {protocol.OffsetFetch, 7}, {protocol.FindCoordinator, 1},
		{protocol.JoinGroup, 5}, {protocol.SyncGroup, 3}, {protocol.Heartbeat, 3}, {protocol.LeaveGroup, 1},
		{protocol.InitProducerId, 1}, {protocol.AddPartitionsToTxn, 1}, {protocol.AddOffsetsToTxn, 1},
		{protocol.TxnOffsetCommit, 3}, {protocol.EndTxn, 1},
		{protocol.CreateTopics, 2}, {protocol.CreatePartitions, 0},
		{protocol.DescribeConfigs, 1}, {protocol.IncrementalAlterConfigs, 0},
	}
}

// probe tries each address in turn until one answers, and checks which requests it supports.
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
	pc := protocol.NewConn(&cautiousConn{Conn: conn}, d.clientID)
	answer, err := pc.RoundTrip(new(apiversions.Request))
	if err != nil {
		return fmt.Errorf("read the API versions of Kafka at %s: %w%s", address, err, d.probeHint(err))
	}
	res := answer.(*apiversions.Response)
	if err := codeError(res.ErrorCode, ""); err != nil {
		return fmt.Errorf("read the API versions of Kafka at %s: %w", address, err)
	}
	if err := checkSpoken(address, res.ApiKeys); err != nil {
		return err
	}
	d.hasTopicIDs.Store(slices.ContainsFunc(res.ApiKeys, func(k apiversions.ApiKeyResponse) bool {
		return protocol.ApiKey(k.ApiKey) == protocol.Metadata && k.MaxVersion >= wire.TopicIDsVersion
	}))
	// Without authentication, a Kafka that requires it answers only ApiVersions.
	pc.SetVersions(map[protocol.ApiKey]int16{protocol.Metadata: 8})
	answer, err = pc.RoundTrip(&metadata.Request{TopicNames: []string{}})
	if err != nil {
		return fmt.Errorf("read the brokers of Kafka at %s: %w%s", address, err, d.userHint())
	}
	d.storeAddresses(serversOf(answer.(*metadata.Response)))
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
		return ": it may want a user: give a SASL mechanism, a user and a password file; tidemill kafka-config prints those of a tidemill up"
	}
	return ""
}

func (d *dialer) probeHint(err error) string {
	switch {
	case alertFromPeer(err):
		return tlsHint(err) // refused client certificate, which TLS 1.3 reports only after the handshake
	case !d.security.TLS:
		return ": is this Kafka? It may expect TLS: turn TLS on (--kafka-tls)"
	}
	return ": is this Kafka?"
}

// checkSpoken returns an error that lists the requests that a broker does not support.
func checkSpoken(address string, offered []apiversions.ApiKeyResponse) error {
	ranges := make(map[protocol.ApiKey]apiversions.ApiKeyResponse, len(offered))
	for _, o := range offered {
		ranges[protocol.ApiKey(o.ApiKey)] = o
	}
	var missing []string
	for _, n := range neededRequests() {
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

// codeError turns an error code of the protocol into an error, with the broker's message.
func codeError(code int16, message string) error {
	switch {
	case code == 0:
		return nil
	case message == "":
		return kafka.Error(code)
	}
	return fmt.Errorf("%w: %s", kafka.Error(code), message)
}

// mostAtFirst limits the length of the first answers on a connection. No answer of a Kafka is
// longer.
const mostAtFirst = 1 << 20

// cautiousConn is a connection to a server that may not be a Kafka. kafka-go trusts the lengths in
// an answer: the text of an HTTP server, read as a length, would make it allocate gigabytes. So
// cautiousConn refuses an answer that is longer than Kafka's.
type cautiousConn struct {
	net.Conn
	head [4]byte // length of the answer, which Kafka sends first
	told int     // number of bytes of head that were returned
	left int     // number of bytes of the answer that follow
}

func (m *cautiousConn) Read(b []byte) (int, error) {
	if m.left == 0 {
		if err := m.readLength(); err != nil {
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

// readLength reads the length of the next answer.
func (m *cautiousConn) readLength() error {
	if _, err := io.ReadFull(m.Conn, m.head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(m.head[:]))
	if size <= 0 || size > mostAtFirst {
		return fmt.Errorf("%w: the answer %q… does not come from a Kafka", io.ErrUnexpectedEOF, m.head[:])
	}
	m.told, m.left = 0, int(size)
	return nil
}
