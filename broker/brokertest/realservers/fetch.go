package realservers

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/retry"
)

const (
	tries    = 4 // number of attempts at a registry
	tryAgain = 20 * time.Second
)

// Fetch downloads everything that tests need, so that no test has to download it within
// its own time limit. It retries failures, because registries fail now and then, and
// keeps existing downloads.
func Fetch(ctx context.Context) error {
	for _, get := range []func(context.Context) (string, error){
		buildGateway,
		kafkaJars,
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, pythonLibrary) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, onnxLibrary) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, onnxLibrary, onnxRuntime) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, sciPy) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, river) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, inferenceLibraries()...) },
		javaInference,
		NodeModules,
		BrowserModules,
	} {
		if err := insist(ctx, get); err != nil {
			return err
		}
	}
	return nil
}

func insist(ctx context.Context, get func(context.Context) (string, error)) error {
	for try := 1; ; try++ {
		_, err := get(ctx)
		if err == nil || try == tries || errors.Is(err, exec.ErrNotFound) {
			return err
		}
		fmt.Fprintf(os.Stderr, "in %v it is tried again to %v\n", tryAgain, err)
		if err := retry.Sleep(ctx, tryAgain); err != nil {
			return err
		}
	}
}

// cachedFolder returns a folder of downloads; the first call fills the folder. The folder is
// renamed when it is complete, so no process sees a part of it. Only one folder is filled at a
// time, because Maven's own folder does not allow two writers.
func cachedFolder(name string, fill func(dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder: %w", err)
	}
	home := filepath.Join(cache, "tidemill")
	dir := filepath.Join(home, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	release, err := lockFile(filepath.Join(home, "download-lock"))
	if err != nil {
		return "", fmt.Errorf("wait for other downloads: %w", err)
	}
	defer release()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another process filled it
	}
	tmp, err := os.MkdirTemp(home, "download-")
	if err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", name, err)
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // on systems without locks, another process may have filled it
		return "", fmt.Errorf("keep %s: %w", name, err)
	}
	return dir, nil
}

// KafkaVersion is the Apache Kafka that tests run.
const KafkaVersion = "4.3.1"

// pom requests Kafka's server and the log4j that the server needs at run time.
const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.tidemill</groupId><artifactId>kafka-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + KafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.1</version></dependency>
  </dependencies>
</project>
`

// kafkaJars returns the folder with Kafka's jars and fills it the first time.
func kafkaJars(ctx context.Context) (string, error) {
	return cachedFolder("kafka-"+KafkaVersion, func(dir string) error { return download(ctx, dir, pom, kafkaSums) })
}

// download fetches what a pom names, and compares it with its sums.
func download(ctx context.Context, dir, pom, sums string) error {
	file := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(file, []byte(pom), 0o600); err != nil {
		return fmt.Errorf("write the pom of the jars: %w", err)
	}
	defer os.Remove(file)
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "-C", "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download jars with mvn: %w; is it installed (.ci/real-servers-install), is Maven Central in reach? %s", err, out)
	}
	return checkSums(dir, sums)
}

// kafkaSums are the SHA-256 of the jars, as sha256sum prints them. After a change of the pom, compare
// the new jars with those of another machine, and write their sums here.
//
//go:embed kafka.sha256
var kafkaSums string // read only

// checkSums returns an error if a folder has other jars or programs than a list of sums, because the
// tests run them, in CI as root.
func checkSums(dir, sums string) error {
	want := map[string]string{}
	for line := range strings.Lines(sums) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		want[name] = sum
	}
	jars, err := filepath.Glob(filepath.Join(dir, "*.[je][ax][re]"))
	if err != nil {
		return fmt.Errorf("list the jars in %s: %w", dir, err)
	}
	for _, jar := range jars {
		data, err := os.ReadFile(jar)
		if err != nil {
			return fmt.Errorf("check the sum of a jar: %w", err)
		}
		name, sum := filepath.Base(jar), fmt.Sprintf("%x", sha256.Sum256(data))
		if want[name] != sum {
			return fmt.Errorf("the jar %s has the SHA-256 %s, and its list says %q: Maven's repository sent another file than before; do not run it", name, sum, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		return fmt.Errorf("fetch the jars: Maven sent no %s, which the list of sums names", strings.Join(slices.Sorted(maps.Keys(want)), ", "))
	}
	return nil
}

// The gateway is tested with these CloudEvents libraries of other languages.
const (
	pythonLibrary = "cloudevents==2.2.0"
	nodeLibrary   = "cloudevents@10.0.0"
	// onnxLibrary checks models and has a slow, correct evaluator.
	onnxLibrary = "onnx==1.23.2"
	// onnxRuntime is the runtime that most people use to serve models.
	onnxRuntime = "onnxruntime==1.31.1"
	// sciPy computes statistics in another way than we do.
	sciPy = "scipy==1.17.1"
	// river learns from streams, and has detectors of drift.
	river = "river==0.26.1"
)

// Python runs python3 with the given arguments and Python's cloudevents, which the first
// call downloads from PyPI.
func Python(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, pythonLibrary)
}

// PythonONNX runs python3 with ONNX's own library.
func PythonONNX(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, onnxLibrary)
}

// PythonONNXRuntime runs python3 with ONNX Runtime and ONNX's own library.
func PythonONNXRuntime(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, onnxLibrary, onnxRuntime)
}

// AskSciPy runs a Python script with SciPy. The script gets the question as JSON, and its output is the
// answer as JSON.
func AskSciPy(ctx context.Context, script string, question, answer any) error {
	return ask(ctx, sciPy, script, question, answer)
}

// AskRiver is like AskSciPy, with river.
func AskRiver(ctx context.Context, script string, question, answer any) error {
	return ask(ctx, river, script, question, answer)
}

func ask(ctx context.Context, library, script string, question, answer any) error {
	in, err := json.Marshal(question)
	if err != nil {
		return err
	}
	cmd, err := pythonWith(ctx, []string{"-c", script}, library)
	if err != nil {
		return err
	}
	var problems bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &problems
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("ask %s: %w\n%s", library, err, problems.Bytes())
	}
	return json.Unmarshal(out, answer)
}

// pythonLibraries returns a folder with the given libraries, which the first call
// downloads.
func pythonLibraries(ctx context.Context, libraries ...string) (string, error) {
	return cachedFolder("python-"+strings.Join(libraries, "-"), func(dir string) error {
		pip := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", dir}
		return install(ctx, dir, "python3", append(pip, libraries...)...)
	})
}

func pythonWith(ctx context.Context, args []string, libraries ...string) (*exec.Cmd, error) {
	dir, err := pythonLibraries(ctx, libraries...)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	return cmd, nil
}

// NodeModules returns a folder with npm's cloudevents, which the first call downloads
// from npm's registry. Node looks for modules in a folder node_modules above the script;
// a link to this folder works too.
func NodeModules(ctx context.Context) (string, error) {
	dir, err := cachedFolder("node-"+nodeLibrary, func(dir string) error {
		return install(ctx, dir, "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir, nodeLibrary)
	})
	return filepath.Join(dir, "node_modules"), err
}

func install(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w; is it installed (.ci/real-servers-install), is its registry in reach? %s", name, args[len(args)-1], err, out)
	}
	return nil
}

const (
	clusterID = "4L6g3nShT-eMCtK--X86sw" // any 16 bytes in base64

	format = "kafka.tools.StorageTool"
)

// Node is one broker. Each broker is also a controller.
type Node struct {
	id    int
	dir   string
	host  string // address that the broker listens on
	ports []int  // ports, indexed by listener
	proc  *process
}

// Start starts the broker on its ports and folder; see Kafka.Ready.
func (n *Node) Start() error { return n.proc.start() }

// Stop stops the broker in order: the broker first hands its partitions over.
func (n *Node) Stop() error { return n.proc.stop() }

// Kill ends the broker with SIGKILL.
func (n *Node) Kill() error { return n.proc.kill() }

// PID returns the id of the running broker's process, so that a measurement can read its CPU time.
func (n *Node) PID() int { return n.proc.cmd.Process.Pid }

// newNodes assigns ports to all brokers first, because each config names all brokers.
func newNodes(dir, jars string, ports []int, o KafkaOptions) ([]*Node, error) {
	perNode := len(ports) / o.Brokers
	nodes := make([]*Node, o.Brokers)
	for i := range nodes {
		n := &Node{id: i + 1, host: o.Host, dir: filepath.Join(dir, fmt.Sprint("node-", i+1)), ports: ports[i*perNode : (i+1)*perNode]}
		n.proc = &process{dir: dir, log: filepath.Join(n.dir, "log"),
			args: java(o.Java, jars, "kafka.Kafka", n.properties())}
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
	if err := os.WriteFile(n.properties(), writeProperties(n.brokerConfig(dir, all, o)), 0o600); err != nil {
		return fmt.Errorf("write the config of broker %d: %w", n.id, err)
	}
	return nil
}

// formatStorage makes the broker's storage.
func (n *Node) formatStorage(ctx context.Context, jars string) error {
	args := java(nil, jars, format, "format", "-t", clusterID, "-c", n.properties())
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("format the storage of broker %d: %w; run .ci/real-servers-install if java is missing: %s", n.id, err, out)
	}
	return nil
}

func (n *Node) kafkaAddr() net.Addr { return kafka.TCP(at(n.host, n.ports[plain])) }

// java returns a command of Java. Test brokers are small and live for a short time, and they start
// faster with only Java's first compiler than with both compilers.
func java(options []string, jars, class string, args ...string) []string {
	if options == nil {
		options = []string{"-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	}
	command := append([]string{"java"}, options...)
	command = append(command, "-Dlog4j2.level=WARN", "-cp", filepath.Join(jars, "*"), class)
	return append(command, args...)
}
