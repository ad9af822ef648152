package realservers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/segmentio/kafka-go"
)

const (
	clusterID = "4L6g3nShT-eMCtK--X86sw" // any 16 bytes in base64

	// Brokers of tests are small and live shortly: the first compiler alone
	// starts them faster than both.
	heap, format = "-Xmx384m", "kafka.tools.StorageTool"
)

// Node is one broker, which is a controller too.
type Node struct {
	id    int
	dir   string
	host  string // that it listens on
	ports []int  // by listener
	proc  *process
}

// Start starts the broker on its ports and folder; see Kafka.Ready.
func (n *Node) Start() error { return n.proc.start() }

// Stop stops the broker in order: it hands its partitions over first.
func (n *Node) Stop() error { return n.proc.stop() }

// Kill ends the broker with SIGKILL.
func (n *Node) Kill() error { return n.proc.kill() }

// newNodes gives all brokers their ports, since each is told of all.
func newNodes(dir, jars string, ports []int, o KafkaOptions) ([]*Node, error) {
	perNode := len(ports) / o.Brokers
	nodes := make([]*Node, o.Brokers)
	for i := range nodes {
		n := &Node{id: i + 1, host: o.Host, dir: filepath.Join(dir, fmt.Sprint("node-", i+1)), ports: ports[i*perNode : (i+1)*perNode]}
		n.proc = &process{dir: dir, log: filepath.Join(n.dir, "log"),
			args: java(jars, "kafka.Kafka", n.properties())}
		nodes[i] = n
	}
	for _, n := range nodes {
		if err := n.write(dir, nodes, o); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func (n *Node) properties() string { return filepath.Join(n.dir, "server.properties") }

func (n *Node) write(dir string, all []*Node, o KafkaOptions) error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for broker %d: %w", n.id, err)
	}
	if err := os.WriteFile(n.properties(), render(n.config(dir, all, o)), 0o600); err != nil {
		return fmt.Errorf("write the config of broker %d: %w", n.id, err)
	}
	return nil
}

// format makes the broker's storage.
func (n *Node) format(ctx context.Context, jars string) error {
	args := java(jars, format, "format", "-t", clusterID, "-c", n.properties())
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("format the storage of broker %d: %w; run .ci/real-servers-install if java is missing: %s", n.id, err, out)
	}
	return nil
}

func (n *Node) kafkaAddr() net.Addr { return kafka.TCP(at(n.host, n.ports[plain])) }

func java(jars, class string, args ...string) []string {
	return append([]string{"java", heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN",
		"-cp", filepath.Join(jars, "*"), class}, args...)
}
