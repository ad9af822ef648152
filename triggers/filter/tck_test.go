package filter

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// tckFile is a file of the TCK. Values stay nodes, because YAML would turn texts into
// times.
type tckFile struct {
	Name  string
	Tests []tckCase
}

type tckCase struct {
	Name           string
	Expression     string
	Result         yaml.Node
	Error          string
	Event          map[string]yaml.Node
	EventOverrides map[string]yaml.Node `yaml:"eventOverrides"`
}

const tckCases = 275

func TestTCK(t *testing.T) {
	t.Parallel()
	run := 0
	for _, file := range tckFiles(t) {
		for _, c := range file.Tests {
			run++
			t.Run(file.Name+"/"+c.Name, func(t *testing.T) { c.test(t) })
		}
	}
	if run != tckCases {
		t.Errorf("the TCK has %d cases, and not %d", run, tckCases)
	}
}

func tckFiles(t testing.TB) (files []tckFile) {
	t.Helper()
	names, err := filepath.Glob("testdata/tck/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var f tckFile
		if err := yaml.Unmarshal(text, &f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files = append(files, f)
	}
	return files
}

func (c *tckCase) test(t *testing.T) {
	x, err := cesql.Parse(c.Expression)
	switch {
	case c.Error == "parse" || c.Error == "missingFunction":
		if err == nil || errors.Is(err, cesql.ErrNoFunction) != (c.Error == "missingFunction") {
			t.Errorf("%s: %v, want a %s error", c.Expression, err, c.Error)
		}
		return
	case err != nil:
		t.Fatalf("%s: %v", c.Expression, err)
	}
	f, v, want := compile(c.Expression, x), c.view(t), plain(t, c.Result)
	got, err := f.Value(v)
	if typed, cast := c.typed(x); typed {
		same(t, cast, v, want)
		want = c.Result.Value // its text
	}
	if c.Result.Kind != 0 && got != want || kindOfFault(err) != c.Error {
		t.Errorf("%s is %v and %v, want %v and an error of kind %q", c.Expression, got, err, want, c.Error)
	}
	if _, err := cesql.ParseCondition(c.Expression); err == nil && f.Match(v) != (got == true && c.Error == "") && !isAttribute(x) {
		t.Errorf("%s: it is %v and %v, and a match is %t", c.Expression, got, err, f.Match(v))
	}
}

// typed reports whether a case is only an attribute with a type, and returns the
// expression that casts it to the type.
func (c *tckCase) typed(x cesql.Expr) (bool, string) {
	if !isAttribute(x) {
		return false, ""
	}
	switch c.Result.Tag {
	case "!!int":
		return true, "INT(" + c.Expression + ")"
	case "!!bool":
		return c.Error == "", "BOOL(" + c.Expression + ")"
	}
	return false, ""
}

func isAttribute(x cesql.Expr) bool { _, ok := x.(*cesql.Attribute); return ok }

func same(t *testing.T, expression string, v *broker.View, want any) {
	t.Helper()
	x, err := cesql.Parse(expression)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := compile(expression, x).Value(v); got != want || err != nil {
		t.Errorf("%s is %v and %v, want %v", expression, got, err, want)
	}
}

// view returns the case's event.
func (c *tckCase) view(t *testing.T) *broker.View {
	v := &broker.View{ID: "1", Source: "/source", Type: "type", Subject: "topic", Time: "2020-03-21T12:34:56.78Z"}
	if c.Event != nil {
		v = &broker.View{}
	}
	for _, attributes := range []map[string]yaml.Node{c.Event, c.EventOverrides} {
		for name, node := range attributes {
			if err := v.Set(name, node.Value); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v
}

// plain returns a Go value.
func plain(t *testing.T, node yaml.Node) any {
	switch node.Tag {
	case "!!int":
		n, err := strconv.ParseInt(node.Value, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return int32(n)
	case "!!bool":
		return strings.EqualFold(node.Value, "true")
	}
	return node.Value
}

func kindOfFault(err error) string {
	var f *fault
	if !errors.As(err, &f) {
		return ""
	}
	return map[faultKind]string{mathFault: "math", castFault: "cast", missingAttribute: "missingAttribute", functionFault: "functionEvaluation"}[f.kind]
}
