package config

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

// Each file testdata/bad-NAME.yaml, or folder bad-NAME, is refused with the text of
// bad-NAME.txt; files called bad-access-NAME are access files. To add a case, add the file, run
// with -update and read the output.
func TestBadFiles(t *testing.T) {
	t.Chdir("testdata")
	names, err := filepath.Glob("bad-*")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		if filepath.Ext(name) == ".txt" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			read, err := loadEither(name)
			if err == nil {
				t.Fatalf("is accepted: %+v", read)
			}
			matchGolden(t, strings.TrimSuffix(name, ".yaml")+".txt", err.Error()+"\n")
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "ter2") {
				t.Errorf("the error tells a secret: %s", err)
			}
		})
	}
}

func loadEither(name string) (any, error) {
	if strings.HasPrefix(name, "bad-access-") {
		return LoadAccess(name)
	}
	return Load(name)
}

func matchGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestExamplesAreValid(t *testing.T) {
	all, err := fs.Glob(Examples(), "*.yaml")
	if err != nil || len(all) < 4 {
		t.Fatalf("examples %q, %v", all, err)
	}
	for _, name := range all {
		data, err := fs.ReadFile(Examples(), name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "access.yaml" {
			_, err = ParseAccess(name, data)
		} else {
			_, err = Parse(name, data)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

var shownKey = regexp.MustCompile(`(?m)(?:^|[ {])([A-Za-z]+):`)

// full.yaml shows every key, and gives the built-in streams their defaults.
func TestFullExampleIsFull(t *testing.T) {
	data, err := fs.ReadFile(Examples(), "full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, m := range shownKey.FindAllStringSubmatch(string(data), -1) {
		shown = append(shown, m[1])
	}
	for _, key := range knownKeys(t) {
		if !slices.Contains(shown, key) {
			t.Errorf("full.yaml does not show %s", key)
		}
	}
	cfg, err := Parse("full.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range Default().Streams {
		if got, ok := cfg.Stream(want.Name); !ok || !sameStream(got, want) {
			t.Errorf("full.yaml says of %s %+v, the default is %+v", want.Name, got, want)
		}
	}
}

// knownKeys gets the keys from the parser's own error messages.
func knownKeys(t *testing.T) []string {
	t.Helper()
	_, err := Parse("x", []byte(`
version: 1
zzzzzzzzzz: 1
streams: {a: {zzzzzzzzzz: 1}}
triggers: {a: {zzzzzzzzzz: 1, when: {type: t, zzzzzzzzzz: 1}, to: {function: f, zzzzzzzzzz: 1}, delivery: {zzzzzzzzzz: 1, backoff: {zzzzzzzzzz: 1}}}}
schedules: {a: {zzzzzzzzzz: 1, cron: "@daily"}}
pools: {a: {zzzzzzzzzz: 1, cards: {zzzzzzzzzz: 1, label: a, newestFirst: [a]}, tolerations: [{zzzzzzzzzz: 1, key: a}]}}
recipes: {a: {zzzzzzzzzz: 1, when: {type: t, zzzzzzzzzz: 1}, inputs: {a: {dataset: a, zzzzzzzzzz: 1}}, run: {image: a, zzzzzzzzzz: 1, backoff: {zzzzzzzzzz: 1}, servers: {zzzzzzzzzz: 1, count: 1}, volumes: [{zzzzzzzzzz: 1, claim: a, at: /a}]}, makes: {model: a, zzzzzzzzzz: 1}}}
scorers: {a: {zzzzzzzzzz: 1, from: a, to: events, model: a, batch: {zzzzzzzzzz: 1}, noModel: {model: a, zzzzzzzzzz: 1}, replicas: {zzzzzzzzzz: 1}, labels: {zzzzzzzzzz: 1, from: a, match: {id: id, zzzzzzzzzz: 1}, truth: data.a, wait: 1d}, drift: {zzzzzzzzzz: 1}}}
`))
	var all *Error
	if !errors.As(err, &all) || len(all.Problems) != 26 {
		t.Fatalf("asking for the known keys gave %v", err)
	}
	var keys []string
	for _, p := range all.Problems {
		_, list, _ := strings.Cut(p.Message, "known here: ")
		keys = append(keys, strings.Split(list, ", ")...)
	}
	return keys
}
