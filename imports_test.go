package tidemill_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "tidemill.dev"

// mayImport is the architecture. A package of ours may import those of ours
// and those modules of others that stand behind its name, and the standard
// library; a name that ends in /… stands for all packages below. A package
// that is not in the table is an error, so that whoever adds one decides where
// it stands.
//
// Imports go one way:
//
//	cmd → platform, remote → web → access, repeats, tail, telemetry, cehttp, api → broker → config → cesql, cron → tidemill
//	cmd → platform, remote → web → triggers → acts, access, repeats, tail, telemetry, cehttp, api → follow → broker → config → tidemill
var mayImport = map[string][]string{
	"":                      {"github.com/cloudevents/sdk-go/v2/event"},
	"internal/spelling":     {},
	"internal/infer/tensor": {},
	"internal/infer/kernel": {"golang.org/x/sys/cpu"},
	"internal/infer/onnx":   {"internal/infer/tensor"},
	"internal/infer/native": {"internal/infer/kernel", "internal/infer/onnx", "internal/infer/tensor"},
	"internal/infer/ort":    {"internal/infer/onnx", "internal/infer/tensor", "github.com/ebitengine/purego/…"},
	"internal/infer":        {"internal/infer/native", "internal/infer/onnx", "internal/infer/ort", "internal/infer/tensor", "go.yaml.in/yaml/v3", "github.com/prometheus/client_golang/…"},
	"internal/champions":    {"", "broker", "internal/follow", "internal/ledger"},
	"internal/served":       {"internal/champions", "internal/infer"},
	"internal/pick":         {"broker", "internal/infer/tensor"},
	"internal/oip":          {"", "internal/api", "internal/infer", "internal/infer/tensor", "internal/served"},
	"functions/score":       {"", "config", "broker", "internal/api", "internal/champions", "internal/infer", "internal/infer/tensor", "internal/pick", "internal/served", "triggers/letters", "github.com/prometheus/client_golang/…"},
	"config":                {"", "internal/cesql", "internal/cron", "internal/gate", "internal/spelling", "go.yaml.in/yaml/v3"},
	"internal/gate":         {"", "internal/spelling", "cel.dev/cel-go/…"},
	"internal/measure":      {""},
	"internal/models":       {"", "broker", "internal/api", "internal/gate", "internal/ledger", "internal/measure", "internal/store"},
	"internal/why":          {"", "config", "broker", "internal/api", "internal/ledger", "internal/store"},
	"internal/drawing":      {"internal/api"},
	"internal/forget":       {"", "config", "broker", "internal/api", "internal/ledger", "internal/models", "internal/runs", "internal/store", "triggers/letters"},
	"functions/promote":     {"", "broker", "functions", "internal/models", "github.com/cloudevents/sdk-go/v2/event"},
	"functions/forget":      {"", "broker", "functions", "internal/forget", "github.com/cloudevents/sdk-go/v2/event"},
	"examples/intents":      {},
	"examples/stages":       {},
	"broker/internal/wire":  {"github.com/klauspost/compress/…", "github.com/pierrec/lz4/v4"},
	"broker": {"", "config", "broker/internal/wire",
		"github.com/cloudevents/sdk-go/v2/…", "github.com/segmentio/kafka-go/…"},
	"broker/embedded": {"",
		"github.com/twmb/franz-go/pkg/kfake", "github.com/twmb/franz-go/pkg/kmsg", "github.com/twmb/franz-go/pkg/kerr",
		"github.com/alicebob/miniredis/v2", "golang.org/x/sys/…"},
	"internal/realservers":       {"github.com/segmentio/kafka-go/…"},
	"internal/realservers/fetch": {"internal/realservers"},
	"broker/brokertest":          {"", "broker", "broker/embedded", "github.com/segmentio/kafka-go/…", "github.com/twmb/franz-go/pkg/kmsg"},
	"loadtest": {"", "config", "broker", "broker/embedded", "functions/score", "triggers/match", "internal/api", "internal/heap", "internal/infer", "internal/infer/native", "internal/infer/ort", "internal/infer/tensor", "internal/local", "internal/parcel", "internal/pick", "internal/platform", "internal/realservers", "internal/remote", "internal/store", "internal/telemetry",
		"loadtest/internal/chart", "loadtest/internal/fleet", "loadtest/internal/load", "loadtest/internal/scenario", "loadtest/internal/task", "github.com/segmentio/kafka-go/…"},
	"loadtest/trainer":           {},
	"loadtest/internal/load":     {"loadtest/internal/task"},
	"loadtest/internal/task":     {},
	"loadtest/internal/chart":    {},
	"loadtest/internal/fleet":    {},
	"loadtest/internal/scenario": {"loadtest/internal/fleet", "go.yaml.in/yaml/v3"},
	"loadtest/plain": {"internal/infer/native", "internal/infer/ort", "internal/infer/tensor", "loadtest/internal/fleet", "loadtest/internal/task",
		"github.com/cloudevents/sdk-go/v2/…", "github.com/segmentio/kafka-go"}, // what it is compared with are other people's clients
	"e2e/chaos":       {"", "broker", "broker/embedded", "config", "internal/api", "triggers/deliver", "internal/platform", "internal/telemetry", "internal/web", "triggers/clock", "functions/score", "internal/store"},
	"e2e/crash":       {"", "broker", "broker/embedded", "config", "internal/api", "internal/ledger", "internal/local", "internal/platform", "internal/store", "internal/telemetry"},
	"e2e/kcat":        {"", "broker", "internal/realservers"},
	"e2e/peers":       {"", "broker", "config", "internal/platform", "internal/realservers", "internal/telemetry"},
	"internal/api":    {""},
	"internal/cesql":  {"internal/spelling"},
	"internal/ledger": {"", "broker", "internal/follow", "github.com/redis/go-redis/v9/…", "github.com/prometheus/client_golang/…"},
	"internal/store":  {"", "internal/api", "gocloud.dev/…"},
	"internal/parcel": {"internal/api"},
	"internal/runs":   {"", "config", "broker", "internal/api", "internal/ledger", "internal/store", "github.com/prometheus/client_golang/…"},
	"internal/agent":  {"", "internal/api", "internal/parcel"},
	"internal/census": {"", "broker", "internal/follow", "internal/ledger", "github.com/prometheus/client_golang/…"},
	"internal/warm":   {"", "github.com/redis/go-redis/v9/…"},
	"internal/muster": {"", "github.com/redis/go-redis/v9/…"},
	"internal/kube": {"", "config", "internal/api", "internal/agent", "internal/ledger", "internal/runs", "internal/warm", "github.com/prometheus/client_golang/…",
		"k8s.io/api/…", "k8s.io/apimachinery/…", "k8s.io/client-go/…", "knative.dev/serving/…", "knative.dev/pkg/…", "knative.dev/networking/…", "sigs.k8s.io/yaml",
		"k8s.io/klog/v2"}, // client-go writes to it; it is told to be quiet
	"charts":             {"config", "k8s.io/api/…", "k8s.io/apimachinery/…", "knative.dev/serving/…", "sigs.k8s.io/yaml"}, // its tests, which hold what is rendered against these
	"cmd/tidemill-agent": {"internal/agent", ""},
	"internal/ocitar":    {},
	"image":              {"internal/ocitar", "internal/infer/ort", "internal/infer/tensor"}, // of inference: its test asks for it in the image
	"e2e/kube/sandbox":   {},
	"e2e/kube/job":       {},
	"e2e/kube/images":    {"internal/ocitar"},
	"e2e/kube":           {"", "config", "broker", "internal/api", "internal/remote", "internal/realservers", "e2e/kube/sandbox", "k8s.io/api/…", "k8s.io/apimachinery/…", "k8s.io/client-go/…", "knative.dev/serving/…"},
	"internal/local":     {"", "config", "internal/runs", "internal/agent", "golang.org/x/sys/…"},
	"functions/train":    {"", "config", "broker", "functions", "internal/runs", "triggers/match", "github.com/cloudevents/sdk-go/v2/event"},
	"triggers/match":     {"broker", "internal/cesql"},
	"triggers/clock": {"", "config", "broker", "internal/cron", "internal/tail",
		"github.com/redis/go-redis/v9/…", "github.com/prometheus/client_golang/…"},
	"internal/cron":     {},
	"internal/heap":     {},
	"internal/cehttp":   {"broker"},
	"internal/access":   {"", "config", "broker", "internal/api", "github.com/coreos/go-oidc/v3/…", "go.yaml.in/yaml/v3"},
	"internal/repeats":  {"", "github.com/redis/go-redis/v9/…", "github.com/prometheus/client_golang/…"},
	"internal/tail":     {"broker"},
	"internal/follow":   {"broker"},
	"internal/standing": {"", "github.com/redis/go-redis/v9/…"},
	"internal/acts":     {"", "broker", "internal/follow"},
	"triggers/letters":  {"", "broker", "internal/follow"},
	"examples/function": {"functions", "github.com/cloudevents/sdk-go/v2/event"},
	"triggers/deliver":  {"", "config", "broker", "internal/api", "internal/acts", "internal/cehttp", "internal/telemetry", "triggers/letters", "triggers/match", "go.opentelemetry.io/otel/…", "github.com/prometheus/client_golang/…"},
	"functions":         {"", "broker", "internal/cehttp", "github.com/cloudevents/sdk-go/v2/event"},
	"internal/telemetry": {"", "broker",
		"go.opentelemetry.io/otel/…", "google.golang.org/grpc/credentials", // of the exporter
		"github.com/prometheus/client_golang/…", "github.com/prometheus/client_model/go"},
	"internal/web": {"", "config", "broker", "internal/api", "internal/cehttp", "internal/access", "internal/repeats", "internal/tail", "internal/telemetry", "triggers/match",
		"internal/acts", "internal/standing", "triggers/letters", "triggers/match", "triggers/clock",
		"internal/ledger", "internal/store", "internal/runs", "internal/models", "internal/why", "internal/forget", "internal/warm", "internal/muster",
		"github.com/prometheus/client_golang/…", "go.opentelemetry.io/otel/…"},
	"internal/remote": {"", "config", "broker", "internal/api", "internal/cehttp", "internal/tail", "internal/parcel"},
	"internal/platform": {"", "config", "broker", "broker/embedded", "internal/api", "functions", "functions/score", "internal/champions", "internal/infer", "internal/oip", "internal/served", "triggers/deliver", "internal/standing",
		"internal/web", "triggers/clock", "triggers/letters", "internal/ledger", "internal/store", "internal/runs", "internal/local", "internal/kube", "internal/warm", "internal/muster", "internal/census", "functions/train", "functions/promote", "functions/forget", "internal/models", "internal/why", "internal/forget", "internal/acts", "internal/access", "internal/repeats", "internal/tail", "internal/telemetry",
		"github.com/redis/go-redis/v9/…", "github.com/prometheus/client_golang/…"},
	"cmd/tidemill": {"", "internal/spelling", "internal/local", "internal/parcel", "functions", "github.com/cloudevents/sdk-go/v2/event", "config", "broker", "broker/embedded", "internal/api", "internal/access", "internal/heap", "internal/infer", "internal/platform", "internal/web", "internal/tail", "triggers/letters", "internal/telemetry", "internal/remote", "internal/drawing", "internal/cesql", "triggers/match",
		"golang.org/x/term",
		"github.com/segmentio/kafka-go"}, // the demo writes a record that is no event, as any program may
}

// A test may use these besides what its package may import.
var testsMayImport = []string{"", "broker", "functions", "internal/ledger", "broker/embedded", "broker/brokertest", "internal/realservers", "internal/parcel", "internal/store",
	"github.com/cloudevents/sdk-go/…", "github.com/segmentio/kafka-go/…", "github.com/redis/go-redis/v9", "github.com/alicebob/miniredis/v2",
	"github.com/twmb/franz-go/pkg/kfake", "github.com/twmb/franz-go/pkg/kmsg", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kversion",
	"github.com/getkin/kin-openapi/…", "go.yaml.in/yaml/v3", "github.com/prometheus/client_golang/…", "github.com/prometheus/client_model/go", "go.yaml.in/yaml/v3",
	"k8s.io/api/…", "k8s.io/apimachinery/…", // of API servers of tests
	"go.opentelemetry.io/otel/…", "go.opentelemetry.io/proto/otlp/…", "google.golang.org/grpc/…", "google.golang.org/protobuf/proto"}

type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestImportsGoOneWay(t *testing.T) {
	for _, p := range list(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %q is not in the table of imports: decide what it may import", name)
			continue
		}
		check(t, name, p.Imports, allowed)
		check(t, name+" (tests)", append(p.TestImports, p.XTestImports...), append(slices.Clone(testsMayImport), append(allowed, name)...))
	}
}

// The domain starts no goroutine, so it is tested without the race detector: see
// the Makefile.
func TestTheDomainIsOfOneGoroutine(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if i.Path.Value == `"sync"` || i.Path.Value == `"sync/atomic"` {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if _, starts := n.(*ast.GoStmt); starts {
				t.Errorf("%s starts a goroutine", name)
			}
			return true
		})
	}
}

func check(t *testing.T, name string, imports, allowed []string) {
	for _, i := range imports {
		if !standard(i) && !slices.ContainsFunc(allowed, func(a string) bool { return covers(a, i) }) {
			t.Errorf("package %q imports %s, which the table of imports does not allow", name, i)
		}
	}
}

func covers(allowed, path string) bool {
	if first, _, _ := strings.Cut(allowed, "/"); !strings.Contains(first, ".") {
		allowed = strings.TrimSuffix(module+"/"+allowed, "/")
	}
	if all, below := strings.CutSuffix(allowed, "/…"); below {
		return path == all || strings.HasPrefix(path, all+"/")
	}
	return path == allowed
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func list(t *testing.T) []listed {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
