package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
