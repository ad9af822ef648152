package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	clusterID = "tidemill-embedded"

	// Apache's default is 6 s; a laptop may look for dead members sooner.
	minSessionTimeout = 500 * time.Millisecond
)

// brokerConfigs are given on every start: kfake stores them in its folder, and
// what it is told then wins over what it stored.
func brokerConfigs() map[string]string {
	return map[string]string{
		// Only whole segments are removed, so they are small enough for a
		// laptop's streams to shrink.
		"log.segment.bytes": "16777216",
		// A week away from the laptop must not cost a group its place.
		"offsets.retention.minutes":  "525600",
		"default.replication.factor": "1",
	}
}

func startCluster(o Options, doors []*door) (*kfake.Cluster, error) {
	opts, err := clusterOptions(o, doors)
	if err != nil {
		return nil, err
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the embedded Kafka server on %s: %w", place(o), err)
	}
	refuseCompaction(c)
	shareFetches(c)
	if o.Dir != "" {
		if err := forgetSequences(kafkaDir(o.Dir)); err != nil {
			c.Close()
			return nil, fmt.Errorf("take over the producers' sequences: %w", err)
		}
	}
	return c, nil
}

func clusterOptions(o Options, doors []*door) ([]kfake.Opt, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(o.Brokers),
		kfake.ClusterID(clusterID),
		kfake.ListenFn(handOut(doors)),
		kfake.DefaultNumPartitions(1),
		kfake.GroupMinSessionTimeout(minSessionTimeout),
		kfake.BrokerConfigs(brokerConfigs()),
		kfake.WithLogger(bridge{o.Logger.With("server", "kafka")}),
	}
	for _, u := range o.Users {
		opts = append(opts, kfake.EnableSASL(), kfake.Superuser(u.Mechanism, u.Name, u.Password))
	}
	if o.Dir == "" {
		return opts, nil
	}
	if o.Sync {
		opts = append(opts, kfake.SyncWrites())
	}
	if err := restoreSequences(kafkaDir(o.Dir)); err != nil {
		return nil, err
	}
	return append(opts, kfake.DataDir(kafkaDir(o.Dir))), forgetUsers(o.Dir)
}

func kafkaDir(dir string) string { return filepath.Join(dir, "kafka") }

// forgetUsers removes the users that kfake stored, which would otherwise win
// over the ones of this start.
func forgetUsers(dir string) error {
	err := os.Remove(filepath.Join(kafkaDir(dir), "sasl.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the users of the last start: %w", err)
	}
	return nil
}

// handOut gives kfake, which would choose ports itself, our listeners in turn.
// It calls this one broker after another.
func handOut(doors []*door) func(network, address string) (net.Listener, error) {
	next := 0
	return func(_, address string) (net.Listener, error) {
		if next == len(doors) {
			return nil, fmt.Errorf("no listener is left for %s", address)
		}
		next++
		return doors[next-1], nil
	}
}

// applyRetention removes what has expired, until the context ends.
func applyRetention(ctx context.Context, c *kfake.Cluster, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.ApplyRetention()
		}
	}
}

func place(o Options) string {
	if o.Dir == "" {
		return "memory"
	}
	return "folder " + kafkaDir(o.Dir)
}
