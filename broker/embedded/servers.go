package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev/broker/network"
	"tidemill.dev/config"
)

const (
	anyPort        = "127.0.0.1:0"
	retentionEvery = 30 * time.Second
)

// Options configure the servers. The zero value runs both in memory on free loopback ports.
type Options struct {
	// Dir holds the data and a lock; empty keeps everything in memory.
	Dir string
	// Kafka and Redis are the addresses to listen on, as host:port. Empty is a free
	// loopback port; port 0 is a free port of that host.
	Kafka, Redis string
	// Public allows a host that is not loopback. Without Users or Passwords any client that reaches
	// the port has full access to the data.
	Public bool
	// Sync makes an acknowledged batch survive a power cut, with one fsync per batch.
	Sync bool
	// Brokers is the number of brokers in the cluster, 1 by default. Tests of moving
	// leaders use more; with a fixed port each broker takes the next port.
	Brokers int
	// Advertise is the address that Kafka clients get, if a proxy is in front of the
	// server; only for one broker.
	Advertise string
	// TLS, if given, secures Kafka's listeners.
	TLS *tls.Config
	// Users, if given, are the only users that may connect to Kafka.
	Users []User
	// Passwords makes both servers ask for the passwords in the data folder. A start makes those that
	// are missing. See KafkaPasswordFile.
	Passwords bool
	// Retention is the time between removals of expired records, 30 s by default.
	Retention time.Duration
	// Network is the network on which the servers listen.
	Network network.Network
	// Logger gets the servers' log messages; nil discards them.
	Logger *slog.Logger

	inside User          // user of this package at Kafka; empty without users
	redis  config.Secret // password of Redis; empty for none
}

// User may authenticate to the Kafka server.
type User struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
	Mechanism, Name, Password string
}

// String returns the user without the password.
func (u User) String() string { return u.Mechanism + " " + u.Name }

// GoString returns the user without the password.
func (u User) GoString() string { return u.String() }

func (o Options) withDefaults() Options {
	if o.Kafka == "" {
		o.Kafka = anyPort
	}
	if o.Redis == "" {
		o.Redis = anyPort
	}
	if o.Brokers < 1 {
		o.Brokers = 1
	}
	if o.Retention <= 0 {
		o.Retention = retentionEvery
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Servers are a running Kafka and Redis server.
type Servers struct {
	dir     string
	lock    *dirLock
	doors   []*brokerListener
	addrs   []string
	cluster *kfake.Cluster
	redis   *redisServer
	network network.Network
	inside  User // user of this package at Kafka; empty without users
	log     *slog.Logger

	stop   context.CancelFunc
	clocks sync.WaitGroup
	closed sync.Once
	err    error
}

// Start starts both servers. The context limits only the start; Close stops the servers.
func Start(ctx context.Context, o Options) (*Servers, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start embedded servers: %w", err)
	}
	o = o.withDefaults()
	s := &Servers{dir: o.Dir, network: o.Network, stop: func() {}, log: o.Logger}
	if err := s.startParts(o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// startParts keeps the started parts in s, also if it fails.
func (s *Servers) startParts(o Options) (err error) {
	if s.lock, err = lockDir(o.Dir); err != nil {
		return err
	}
	if o, err = o.withUsers(); err != nil {
		return err
	}
	s.inside = o.inside
	if s.doors, err = openDoors(o); err != nil {
		return err
	}
	for _, d := range s.doors {
		s.addrs = append(s.addrs, d.Listener.Addr().String())
	}
	if s.cluster, err = startCluster(o, s.doors); err != nil {
		return err
	}
	if s.redis, err = startRedis(o); err != nil {
		return err
	}
	s.startClocks(o)
	return nil
}

func (s *Servers) startClocks(o Options) {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.clocks.Go(func() { s.redis.moveTime(ctx, o.Network.Virtual()) })
	s.clocks.Go(func() { applyRetention(ctx, s.cluster, o.Retention) })
	if o.TLS == nil { // otherwise leaveGroup, which has no TLS, could not connect
		dead := watchJoiners(s.cluster)
		s.clocks.Go(func() { s.removeDead(ctx, dead, o.Logger) })
	}
}

// Kafka returns the address of the Kafka server, of the first broker if there are several.
func (s *Servers) Kafka() string { return s.addrs[0] }

// Redis returns the address of the Redis server.
func (s *Servers) Redis() string { return s.redis.listener.Addr().String() }

// Dir returns the data folder; it is empty in memory.
func (s *Servers) Dir() string { return s.dir }

// DiskLeft returns the free bytes on the disk of the data folder; in memory it is math.MaxInt64.
func (s *Servers) DiskLeft() (int64, error) {
	if s.dir == "" {
		return math.MaxInt64, nil
	}
	return diskLeft(s.dir)
}

// Cluster returns the Kafka server, for tests that inject faults with its ControlKey,
// Fault and MoveTopicPartition. Do not call its Close.
func (s *Servers) Cluster() *kfake.Cluster { return s.cluster }

// Close stops accepting requests, writes all data, and returns when every connection is
// closed and the folder can be opened again.
func (s *Servers) Close() error {
	s.closed.Do(func() { s.err = s.stopParts() })
	return s.err
}

// stopParts stops the parts in a fixed order. The clocks stop first, because a call into a closed
// cluster never returns. The cluster saves its data before its connections are closed. The snapshot of
// Redis is written after the last command. The lock is released last, so the next holder finds a complete
// folder.
func (s *Servers) stopParts() error {
	s.stop()
	s.clocks.Wait()
	if s.cluster != nil {
		s.cluster.Close()
	}
	for _, d := range s.doors {
		d.closeAll()
	}
	if s.redis != nil {
		s.redis.close()
		s.saveRedis()
	}
	return s.lock.release()
}

// saveRedis writes the snapshot. No data is lost without it.
func (s *Servers) saveRedis() {
	if s.dir == "" {
		return
	}
	if err := save(s.redis.Miniredis, s.dir, build()); err != nil {
		s.log.Warn("redis: its keys are not kept; the next start reads them from the log again", "reason", err)
	}
}

// These ports are below those that kernels give to outgoing connections. So the port of a server is
// still free after a restart; otherwise a connection of any program could have taken the port.
const (
	firstPort = 10_000
	ports     = 10_000
	portTries = 100
)

// The process gives a port again only after all others: while one server restarts, no other takes
// its port. Processes begin at different ports.
var (
	beginPort  = rand.Uint64N(ports)
	portsGiven atomic.Uint64
)

// listenAt calls listen with the given address. For port 0 it tries one port after another until
// listen succeeds.
func listenAt(addr string, listen func(addr string) error) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return listen(addr)
	}
	for range portTries {
		if listen(net.JoinHostPort(host, strconv.FormatUint(firstPort+(beginPort+portsGiven.Add(1))%ports, 10))) == nil {
			return nil
		}
	}
	return listen(addr) // returns the error if it fails, too
}

var errHeld = errors.New("held by another process")

// dirLock keeps other processes out of a data folder. The kernel holds the lock for the open file,
// so the lock ends with the process, even after a kill. The pid in the file is for people.
type dirLock struct{ f *os.File }

// lockDir creates the folder if it is missing and locks it. Without a folder there is no lock.
func lockDir(dir string) (*dirLock, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	if err := config.CheckFolder(dir); err != nil {
		return nil, fmt.Errorf("open the data folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data folder: %w", err)
	}
	if err := tryLock(f); err != nil {
		err = explainLock(dir, f, err)
		return nil, errors.Join(err, f.Close())
	}
	if err := writePID(f); err != nil {
		return nil, errors.Join(fmt.Errorf("write the pid into %s: %w", f.Name(), err), f.Close())
	}
	return &dirLock{f: f}, nil
}

// LockFolder keeps other processes out of a data folder without embedded servers. The error names
// the process that has it.
func LockFolder(dir string) (release func() error, err error) {
	l, err := lockDir(dir)
	return l.release, err
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func explainLock(dir string, f *os.File, err error) error {
	if !errors.Is(err, errHeld) {
		return fmt.Errorf("lock the data folder %s: %w", dir, err)
	}
	holder := "another process"
	if pid := readPID(f); pid != "" {
		holder = "process " + pid
	}
	return fmt.Errorf("the data folder %s is in use by %s: stop it, or give another folder", dir, holder)
}

// readPID returns an empty text if the holder has taken the lock but not yet written its pid.
func readPID(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0) // the end of the file is not an error here
	return strings.TrimSpace(string(b[:n]))
}

// release keeps the file. If the file were removed, a third process could lock a new file of that
// name while a second process holds the old file.
func (l *dirLock) release() error {
	if l == nil {
		return nil
	}
	return l.f.Close()
}
