package embedded

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"
)

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
