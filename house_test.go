package tidemill_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "tidemill.dev"

// wing is one row of the architecture: a folder, and the foreign modules that its packages
// may import.
type wing struct {
	folder  string
	modules string // separated by spaces; a name covers all packages below it
}

// wings lists the architecture from the bottom to the top. A package may import packages of
// its own wing and of earlier wings in this list.
var wings = []wing{
	{"", "github.com/cloudevents/sdk-go/v2"}, // the vocabulary
	{"broker/jsonscan", ""},                  // a helper without imports
	{"internal/data/ledger/fold", ""},        // pure functions; the API shows their state
	{"api", ""},
	{"config", "cel.dev/cel-go go.yaml.in/yaml/v3"},
	{"broker", "github.com/cloudevents/sdk-go/v2 github.com/segmentio/kafka-go github.com/twmb/franz-go github.com/redis/go-redis/v9 github.com/alicebob/miniredis/v2 " +
		"github.com/klauspost/compress github.com/pierrec/lz4/v4 github.com/prometheus/client_golang"},
	{"internal/data", "github.com/redis/go-redis/v9 github.com/prometheus/client_golang github.com/minio/minio-go/v7"},
	{"internal/ops", "github.com/redis/go-redis/v9 github.com/prometheus go.opentelemetry.io/otel google.golang.org/grpc/credentials"},
	{"triggers", "github.com/redis/go-redis/v9 github.com/prometheus/client_golang go.opentelemetry.io/otel"},
	{"internal/runs", "github.com/redis/go-redis/v9 github.com/prometheus/client_golang k8s.io knative.dev golang.org/x/sys"},
	{"internal/models", ""},
	{"internal/scoring", "github.com/ebitengine/purego google.golang.org/protobuf/encoding/protowire github.com/prometheus/client_golang go.yaml.in/yaml/v3 golang.org/x/sys"},
	{"functions", "github.com/cloudevents/sdk-go/v2 github.com/prometheus/client_golang"},
	{"docs", ""}, // the binary contains the runbooks
	{"internal/gateway", "github.com/coreos/go-oidc/v3 google.golang.org/grpc github.com/prometheus/client_golang go.opentelemetry.io/otel go.yaml.in/yaml/v3 maragu.dev/gomponents"},
	{"internal/platform", "github.com/redis/go-redis/v9 github.com/prometheus/client_golang"},
	{"examples", "github.com/cloudevents/sdk-go/v2 github.com/segmentio/kafka-go"}, // the binary contains examples/demo
	{"python", ""}, // the binary contains the Python package
	{"internal/cli", "github.com/cloudevents/sdk-go/v2 github.com/spf13 golang.org/x/term"},
	{"cmd", ""},
	{"charts", ""},
	{"e2e", ""},
}

// narrow lists packages that may import less than their wing, with the reasons.
var narrow = map[string][]string{
	"broker/internal/wire":     {},                                                         // parses bytes of hostile peers: no I/O
	"broker/network":           {},                                                         // every wing may use it
	"broker/retry":             {},                                                         // part of the agent, which stays small
	"internal/runs/agent":      {"", "api", "broker/retry", "internal/data/transfer"},      // a small static binary
	"internal/data/transfer":   {"", "api", "broker/retry"},                                // part of the agent
	"internal/scoring/infer/…": {"config", "broker/retry", "internal/scoring/infer/…"},     // engines know no streams
	"internal/cli/command":     {"broker/network", "config/spelling", "internal/cli/show"}, // what a command is, for any program
	"internal/cli/show":        {},                                                         // text for people: no client, no config
	"examples/demo":            {},                                                         // a user's program: only commands and HTTP
	"examples/function":        {"functions"},                                              // a user's program: only the public package
}

// serversOutside lists the files of the product that make an HTTP server without network.NewServer,
// with the reasons.
var serversOutside = map[string]string{
	"broker/network/network.go": "it is network.NewServer",
	"examples/demo/events.go":   "it is a user's function, which listens on loopback during the demo",
}

// An HTTP server without limits lets anyone take the process's memory before authentication, so every
// server is made in one place. Rigs in modules of their own and tests may make others.
func TestEveryServerHasLimits(t *testing.T) {
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, e os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (path == "loadtest" || path == "e2e" || path == "image" || strings.HasPrefix(e.Name(), ".") && path != "."):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, ok := s.X.(*ast.Ident)
			if !ok || of.Name != "http" || !slices.Contains([]string{"Server", "Serve", "ServeTLS", "ListenAndServe", "ListenAndServeTLS"}, s.Sel.Name) {
				return true
			}
			found[filepath.ToSlash(path)] = true
			if serversOutside[filepath.ToSlash(path)] == "" {
				t.Errorf("%s uses http.%s: make the server with network.NewServer, which has limits", path, s.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range serversOutside {
		if !found[path] {
			t.Errorf("%s makes no server: remove it from the list", path)
		}
	}
}

// internalDoors is the greatest number of folders that internal/ may have.
const internalDoors = 8

// Tests may import these besides the modules of their wing.
const testModules = "github.com/cloudevents/sdk-go github.com/segmentio/kafka-go github.com/redis/go-redis/v9 github.com/alicebob/miniredis/v2 github.com/twmb/franz-go " +
	"github.com/getkin/kin-openapi go.yaml.in/yaml/v3 github.com/prometheus k8s.io/api k8s.io/apimachinery knative.dev/serving sigs.k8s.io/yaml " +
	"go.opentelemetry.io google.golang.org/grpc google.golang.org/protobuf github.com/minio/minio-go/v7 golang.org/x"

type listed struct {
	ImportPath                         string
	Name                               string
	Doc                                string
	Imports, TestImports, XTestImports []string
}

func (p *listed) folder() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func TestImportsGoDown(t *testing.T) {
	for _, p := range list(t) {
		floor := floorOf(p.folder())
		if floor < 0 {
			t.Errorf("package %q is in no wing: decide which wing it belongs to", p.folder())
			continue
		}
		for _, i := range p.Imports {
			if why := refused(p.folder(), floor, i, wings[floor].modules); why != "" {
				t.Errorf("package %q imports %s: %s", p.folder(), i, why)
			}
		}
		for _, i := range append(p.TestImports, p.XTestImports...) {
			if ours(i) { // tests may import any of our packages; they cannot make an import cycle
				continue
			}
			if why := refused(p.folder(), floor, i, wings[floor].modules+" "+testModules); why != "" {
				t.Errorf("tests of %q import %s: %s", p.folder(), i, why)
			}
		}
	}
}

func TestInternalHasFewDoors(t *testing.T) {
	entries, err := os.ReadDir("internal")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > internalDoors {
		t.Errorf("internal/ has %d folders, at most %d are wanted: find the wing that the new one belongs to", len(entries), internalDoors)
	}
}

// refused returns the reason why a package must not import a path; empty if it may.
func refused(folder string, floor int, path, modules string) string {
	switch {
	case standard(path):
		return ""
	case !ours(path):
		if slices.ContainsFunc(strings.Fields(modules), func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }) {
			return ""
		}
		return "its wing's row does not name that module"
	}
	to := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
	for name, allowed := range narrow {
		if covers(name, folder) && to != folder && !slices.ContainsFunc(allowed, func(a string) bool { return covers(a, to) }) {
			return "it is one of the packages that may import little"
		}
	}
	if above := floorOf(to); above > floor {
		return fmt.Sprintf("wing %q is above wing %q", wings[above].folder, wings[floor].folder)
	}
	return ""
}

func covers(pattern, folder string) bool {
	if all, below := strings.CutSuffix(pattern, "/…"); below {
		return folder == all || strings.HasPrefix(folder, all+"/")
	}
	return folder == pattern
}

// floorOf returns the index of a folder's wing, or -1.
func floorOf(folder string) int {
	if folder == "" {
		return 0
	}
	return slices.IndexFunc(wings, func(w wing) bool {
		return w.folder != "" && (folder == w.folder || strings.HasPrefix(folder, w.folder+"/"))
	})
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// The root package starts no goroutine, so it is tested without the race
// detector: see the Makefile.
func TestTheRootStartsNoGoroutine(t *testing.T) {
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

var updateMap = flag.Bool("update-map", false, "write the map of the house into CONTRIBUTING.md")

const (
	mapBegin = "<!-- The map is generated from the packages' doc.go files: go test -run TestTheMap -update-map . -->\n"
	mapEnd   = "<!-- end of the map -->\n"
)

// The map in CONTRIBUTING.md lists every package with the first sentence of its
// documentation.
func TestTheMapIsComplete(t *testing.T) {
	var want strings.Builder
	want.WriteString("| package | purpose |\n|---|---|\n")
	all := list(t)
	for _, w := range wings {
		for _, p := range all {
			if floorOf(p.folder()) != floorOf(w.folder) {
				continue
			}
			purpose, ok := purposeOf(&p)
			if !ok {
				t.Errorf("package %q has no package comment that begins with \"Package %s \" or, for a command, with its purpose: write it into its doc.go", p.folder(), p.Name)
			}
			design := ""
			if _, err := os.Stat(filepath.Join(p.folder(), "DESIGN.md")); err == nil {
				design = fmt.Sprintf(" Read [DESIGN.md](%s) first.", filepath.ToSlash(filepath.Join(p.folder(), "DESIGN.md")))
			}
			fmt.Fprintf(&want, "| `%s` | %s%s |\n", "/"+p.folder(), purpose, design)
		}
	}
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), mapBegin)
	is, after, ended := strings.Cut(rest, mapEnd)
	if !begun || !ended {
		t.Fatalf("CONTRIBUTING.md has no place for the map: it begins with %q and ends with %q", mapBegin, mapEnd)
	}
	if is == want.String() {
		return
	}
	if !*updateMap {
		t.Fatal("the map in CONTRIBUTING.md is not that of the packages: run go test -run TestTheMap -update-map .")
	}
	if err := os.WriteFile("CONTRIBUTING.md", []byte(before+mapBegin+want.String()+mapEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// purposeOf returns the first sentence of a package's documentation, without the words
// "Package x" and with a capital letter.
func purposeOf(p *listed) (string, bool) {
	doc := strings.ReplaceAll(strings.TrimSpace(p.Doc), "|", "\\|")
	if p.Name != "main" {
		rest, ok := strings.CutPrefix(doc, "Package "+p.Name+" ")
		if !ok {
			return doc, false
		}
		doc = strings.TrimPrefix(rest, "is ")
	}
	if doc == "" {
		return "", false
	}
	return strings.ToUpper(doc[:1]) + doc[1:], true
}

func list(t *testing.T) []listed {
	out, err := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Imports,TestImports,XTestImports", "./...").Output()
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

// Each test that docs/promises.md and docs/security.md name exists.
func TestThePromisesNameTests(t *testing.T) {
	files, err := exec.Command("git", "grep", "-hoE", "^func Test[A-Za-z0-9]+", "--", "*_test.go").Output()
	if err != nil {
		t.Skipf("no git: %v", err)
	}
	for _, document := range []string{"docs/promises.md", "docs/security.md"} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		named := namedTest.FindAllStringSubmatch(string(text), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", document)
		}
		for _, m := range named {
			if !strings.Contains(string(files), "func "+m[1]+"\n") {
				t.Errorf("%s names %s, which no package has", document, m[1])
			}
		}
	}
}

var namedTest = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// Each attack in docs/security.md names a test that repeats it.
func TestEveryThreatNamesATest(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	attacks := 0
	inTable := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "| attack |"):
			inTable = true
		case !strings.HasPrefix(line, "| "):
			inTable = inTable && strings.HasPrefix(line, "|---")
		case inTable:
			if attacks++; !namedTest.MatchString(line) {
				t.Errorf("docs/security.md names no test for: %s", line)
			}
		}
	}
	if attacks == 0 {
		t.Error("docs/security.md has no table of attacks")
	}
}
