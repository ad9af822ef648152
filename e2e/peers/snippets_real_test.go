//go:build real

package peers

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"tidemill.dev/broker/brokertest/realservers"
)

// The programs of docs/publish.md publish the events that they show. The test of all documents in
// internal/cli runs the shell commands of docs/publish.md.
func TestRealSnippetsPublish(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	p, url := gateway(ctx, t)
	dir := programs(t, "../../docs/publish.md")
	modules, err := realservers.NodeModules(ctx)
	if err == nil {
		err = os.Symlink(modules, filepath.Join(dir, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	python, err := realservers.Python(ctx, filepath.Join(dir, "publish.py"))
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(ctx, "node", filepath.Join(dir, "publish.mjs"))
	golang := exec.CommandContext(ctx, "go", "run", filepath.Join(dir, "publish.go")) // runs in this folder, so it uses our go.mod
	for _, cmd := range []*exec.Cmd{python, node, golang} {
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Env = append(cmd.Env, "TIDEMILL_URL="+url)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
	got := stored(ctx, t, p.Broker())
	for _, id := range []string{"order-python-1", "order-node-1", "order-go-1"} {
		if v := got[id]; v.Type != "order-placed" || v.Subject != "merchant-7" || len(v.Data) == 0 {
			t.Errorf("%s arrived as %+v", id, v)
		}
	}
}

var program = regexp.MustCompile("(?ms)^```[a-z]+ file=(publish\\.\\w+)\n(.*?)^```$")

// programs writes a document's programs into a folder.
func programs(t *testing.T, document string) string {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, m := range program.FindAllSubmatch(text, -1) {
		if err := os.WriteFile(filepath.Join(dir, string(m[1])), m[2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
