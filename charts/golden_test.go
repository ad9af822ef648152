//go:build slow

package charts_test

import (
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tidemill.dev/config"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The rendered chart is unchanged. A case is a file of values with a golden file, which go test -tags
// slow ./charts -update writes.
func TestRenders(t *testing.T) {
	for name, values := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := withoutRandom(t, render(t, values))
			golden := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s is not what is rendered any more: %s\nlook at it, and run go test -tags slow ./charts -update", golden, difference(string(want), got))
			}
		})
	}
}

func TestLint(t *testing.T) {
	for name, values := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, errs, err := runHelm(t, "lint", chart, "--strict", "--kube-version", kube, "-f", values); err != nil {
				t.Errorf("%v\n%s%s", err, out, errs)
			}
		})
	}
}

// difference describes the first line that differs.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d is\n%s\nand was\n%s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, and were %d", len(g), len(w))
}

// randomSecret matches the secrets that a first install makes, by their keys.
var randomSecret = regexp.MustCompile(`(?m)^  (operator|prometheus|access\.yaml|run-secret): ([A-Za-z0-9+/=]+)$`)

// withoutRandom replaces random values with a fixed word, after checking them.
func withoutRandom(t *testing.T, text string) string {
	t.Helper()
	return randomSecret.ReplaceAllStringFunc(text, func(line string) string {
		m := randomSecret.FindStringSubmatch(line)
		secret, err := base64.StdEncoding.DecodeString(m[2])
		if err != nil {
			t.Errorf("%s is no base64: %v", m[1], err)
		}
		return "  " + m[1] + ": " + checkSecret(t, m[1], string(secret))
	})
}

func checkSecret(t *testing.T, key, secret string) string {
	t.Helper()
	switch key {
	case "run-secret":
		if len(secret) != 32 {
			t.Errorf("the run secret has %d bytes, and 32 are wanted", len(secret))
		}
		return "CHANCE"
	case "access.yaml":
		if _, err := config.ParseAccess("access.yaml", []byte(secret)); err != nil {
			t.Errorf("the access file is none: %v\n%s", err, secret)
		}
		return "CHANCE"
	}
	if !regexp.MustCompile(`^tm_[a-z0-9]{52}$`).MatchString(secret) {
		t.Errorf("the token of %s is %q", key, secret)
	}
	return "CHANCE"
}
