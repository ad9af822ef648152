package tidemill_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// One thing has one name in every log line, so that a search finds all lines about it. The
// names are in a table of docs/metrics.md. Add a new name there, unless there is one already.
func TestLogKeysAreOfOneList(t *testing.T) {
	known := logKeys(t)
	calls := 0
	files := token.NewFileSet()
	for file, parsed := range sources(t, files) {
		if imported(parsed)["testing"] != "" {
			continue // its Error is testing.T's
		}
		s := keyScan{t: t, file: file, imports: imported(parsed)}
		ast.Inspect(parsed, s.look)
		calls += s.calls
		for key, at := range s.keys {
			if !slices.Contains(known, key) {
				t.Errorf("%s logs under the key %q, which the table in docs/metrics.md does not have", files.Position(at), key)
			}
		}
	}
	if calls < 10 {
		t.Errorf("only %d log calls were found: does the scan still know them?", calls)
	}
}

func logKeys(t *testing.T) (keys []string) {
	text, err := os.ReadFile("docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## The log\n")
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			for _, m := range regexp.MustCompile("`([a-zA-Z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				keys = append(keys, m[1])
			}
		}
	}
	if len(keys) == 0 {
		t.Fatal("docs/metrics.md has no table of keys under “The log”")
	}
	return keys
}

// sources returns the module's Go files without tests.
func sources(t *testing.T, files *token.FileSet) map[string]*ast.File {
	all := map[string]*ast.File{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != "." || strings.HasPrefix(d.Name(), ".") && name != "." {
				return fs.SkipDir // another module, or a hidden folder
			}
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			all[name], err = parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// imported returns a file's imports, by the name that the file uses.
func imported(f *ast.File) map[string]string {
	all := map[string]string{}
	for _, i := range f.Imports {
		at, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(at)
		if i.Name != nil {
			name = i.Name.Name
		}
		all[name] = at
	}
	return all
}

// keyScan collects the keys of a file's log calls.
type keyScan struct {
	t       *testing.T
	file    string
	imports map[string]string
	keys    map[string]token.Pos
	calls   int
}

// firstKey is the index of the first key among a method's arguments.
var firstKey = map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1,
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3, "With": 0}

// makers are slog's functions that make an attribute from a key and a value.
var makers = []string{"Any", "Bool", "Duration", "Float64", "Group", "Int", "Int64", "String", "Time", "Uint64"}

func (s *keyScan) look(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return true
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	of := ""
	if id, ok := method.X.(*ast.Ident); ok {
		of = s.imports[id.Name]
	}
	from, logs := firstKey[method.Sel.Name]
	switch {
	case of == "log/slog" && slices.Contains(makers, method.Sel.Name):
		s.key(call.Args[0])
	case logs && (of == "" || of == "log/slog") && len(call.Args) >= max(from, 1) && (len(call.Args)-from)%2 == 0:
		s.calls++
		for i := from; i < len(call.Args); i += 2 {
			s.key(call.Args[i])
		}
	}
	return true
}

// key adds a key. It must be a literal, so that a search finds it.
func (s *keyScan) key(e ast.Expr) {
	text, ok := e.(*ast.BasicLit)
	if !ok || text.Kind != token.STRING {
		s.t.Errorf("%s: a log call's key is not written out: %v", s.file, e)
		return
	}
	name, _ := strconv.Unquote(text.Value)
	if s.keys == nil {
		s.keys = map[string]token.Pos{}
	}
	s.keys[name] = e.Pos()
}
