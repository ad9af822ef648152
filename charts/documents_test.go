//go:build slow

package charts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var valuesIn = regexp.MustCompile("(?ms)^```yaml file=(values[a-z-]*\\.yaml)\n(.*?)^```$")

// The chart accepts the values in the documents, and Tidemill accepts the config in them.
func TestDocumentedValues(t *testing.T) {
	text, err := os.ReadFile("../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	all := valuesIn.FindAllStringSubmatch(string(text), -1)
	if len(all) < 3 {
		t.Errorf("%d blocks of values in docs/cluster.md, want 3", len(all))
	}
	for _, m := range all {
		t.Run(m[1], func(t *testing.T) {
			file := filepath.Join(t.TempDir(), m[1])
			if err := os.WriteFile(file, []byte(m[2]), 0o600); err != nil {
				t.Fatal(err)
			}
			configOf(t, objects(t, m[1], render(t, file)))
		})
	}
}
