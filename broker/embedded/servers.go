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
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	anyPort        = "127.0.0.1:0"
	retentionEvery = 30 * time.Second
)

// Options say where the servers keep their data and where they listen. The
// zero value is both servers in memory on free loopback ports.
type Options struct {
	// Dir holds the data and a lock; empty keeps everything in memory.
	Dir string
	// Kafka and Redis are host:port to listen on; empty is a free loopback
	// port, port 0 a free one of that host.
	Kafka, Redis string
	// Public allows a host that is not loopback. Without Users whoever
	// reaches the port owns the data, and Redis asks for no password.
	Public bool
	// Sync makes an acknowledged batch survive a power cut: one fsync each.
	Sync bool
	// Brokers is the number of brokers of the one cluster, 1 by default. More
	// are for tests of moving leaders; with a fixed port they take the next.
	Brokers int
	// Advertise is the address that Kafka's clients are told, where something
	// that passes their bytes on stands before it; of one broker.
	Advertise string
	// TLS, if given, is what Kafka's listeners serve.
	TLS *tls.Config
	// Users, if given, are who may speak to Kafka.
	Users []User
	// Retention is how often what has expired is removed, 30 s by default.
	Retention time.Duration
	// Logger is told what the servers have to say; nil is silence.
	Logger *slog.Logger
}

// User may authenticate to the Kafka server.
type User struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
	Mechanism, Name, Password string
}

// String is the user without the password.
func (u User) String() string { return u.Mechanism + " " + u.Name }

// GoString is the user without the password.
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
	doors   []*door
	addrs   []string
	cluster *kfake.Cluster
	redis   *miniredis.Miniredis
	at      string // redis's address, which it forgets when it closes

	stop   context.CancelFunc
	clocks sync.WaitGroup
	closed sync.Once
	err    error
}

// Start starts both servers. The context bounds the start alone; Close ends
// what was started.
func Start(ctx context.Context, o Options) (*Servers, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start embedded servers: %w", err)
	}
	o = o.withDefaults()
	s := &Servers{dir: o.Dir, stop: func() {}}
	if err := s.start(o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start leaves what it has started in s, also when it fails.
func (s *Servers) start(o Options) (err error) {
	if s.lock, err = lockDir(o.Dir); err != nil {
		return err
	}
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
	s.at = s.redis.Addr()
	s.startClocks(o)
	return nil
}

func (s *Servers) startClocks(o Options) {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.clocks.Go(func() { moveTime(ctx, s.redis) })
	s.clocks.Go(func() { applyRetention(ctx, s.cluster, o.Retention) })
	if o.TLS == nil && len(o.Users) == 0 { // else we could not speak to the server ourselves
		dead := watchJoiners(s.cluster)
		s.clocks.Go(func() { s.removeDead(ctx, dead, o.Logger) })
	}
}

// Kafka is the address of the Kafka server, of its first broker if several.
func (s *Servers) Kafka() string { return s.addrs[0] }

// Redis is the address of the Redis server.
func (s *Servers) Redis() string { return s.at }

// DiskLeft is how many bytes the disk of the data folder still takes; in memory
// it is math.MaxInt64.
func (s *Servers) DiskLeft() (int64, error) {
	if s.dir == "" {
		return math.MaxInt64, nil
	}
	return diskLeft(s.dir)
}

// Cluster is the Kafka server itself, for tests that inject faults: see its
// ControlKey, Fault and MoveTopicPartition. Its Close is ours to call.
func (s *Servers) Cluster() *kfake.Cluster { return s.cluster }

// Close stops taking requests, writes out what the servers hold, and returns
// when every connection is closed and the folder is free for another start.
func (s *Servers) Close() error {
	s.closed.Do(func() { s.err = s.close() })
	return s.err
}

// close goes in an order that matters. The clocks stop first, since a call
// into a closed cluster never returns. The cluster saves before its connections
// are cut, and the lock goes last: whoever gets it finds a complete folder.
func (s *Servers) close() error {
	s.stop()
	s.clocks.Wait()
	if s.cluster != nil {
		s.cluster.Close()
	}
	for _, d := range s.doors {
		d.shut()
	}
	if s.redis != nil {
		s.redis.Close()
	}
	return s.lock.release()
}

// Ports below those that kernels give to outgoing connections: a server that is
// away for a moment finds its port free when it comes back, which else the next
// connection of any program may have taken meanwhile.
const (
	firstPort = 10_000
	ports     = 10_000
	portTries = 100
)

// listenAt calls listen with an address until it succeeds; with the very one
// unless that leaves the port to us.
func listenAt(addr string, listen func(addr string) error) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return listen(addr)
	}
	for range portTries {
		if listen(net.JoinHostPort(host, strconv.Itoa(firstPort+rand.IntN(ports)))) == nil {
			return nil
		}
	}
	return listen(addr) // and be told why not
}

var errHeld = errors.New("held by another process")

// dirLock keeps a second process off a data folder. The kernel holds it for
// the open file, so it ends with the process, however that ends; the pid inside
// is for people.
type dirLock struct{ f *os.File }

// lockDir makes the folder if it is missing and locks it. No folder, no lock.
func lockDir(dir string) (*dirLock, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
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

// readPID is empty in the moment between another's lock and its writing.
func readPID(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0) // the end of the file is no error here
	return strings.TrimSpace(string(b[:n]))
}

// release leaves the file: removing it would let a third process lock a new
// file of that name while a second holds the old one.
func (l *dirLock) release() error {
	if l == nil {
		return nil
	}
	return l.f.Close()
}
