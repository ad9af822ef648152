//go:build real

package realservers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestRealLibrariesAreFound(t *testing.T) {
	python, err := Python(limit(t), "-c", "import cloudevents.core")
	must(t, err)
	if out, err := python.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	modules, err := NodeModules(limit(t))
	must(t, err)
	dir := t.TempDir()
	must(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	node := exec.CommandContext(limit(t), "node", "--input-type=module", "-e", `import "cloudevents"`)
	node.Dir = dir
	if out, err := node.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
