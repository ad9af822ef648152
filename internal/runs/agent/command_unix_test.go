//go:build unix

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
)

// containerOptions returns the options of an agent in the container of the run's image.
func (g *gateway) containerOptions() Options {
	g.order.Plan.Image, g.order.Plan.Dir = "trainer:3", ""
	o := g.options()
	o.Inside, o.Cgroup = true, g.t.TempDir()
	return o
}

// A command in its own image gets the container's variables, without those of the agent and of
// Kubernetes. It runs in the image's folder.
func TestInsideAContainer(t *testing.T) {
	t.Setenv("CUDA_VERSION", "12.4")
	t.Setenv("EPOCHS", "of the image")
	t.Setenv(EnvToken, "secret")
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("HOME", "/nowhere/at/all")
	g := newGateway(t)
	o := g.containerOptions()
	g.order.Plan.Env = map[string]string{"EPOCHS": "3"}
	g.sh(`env; echo in $PWD; echo x > "$HOME/kept" && echo home is good; test -d "$TIDEMILL_CHAMPION" || echo no champion`)
	if f := g.run(o); f.Outcome != tidemill.OutcomeSucceeded {
		t.Fatalf("%+v", f)
	}
	said := g.log()
	here, _ := os.Getwd()
	for _, line := range []string{"CUDA_VERSION=12.4", "EPOCHS=3", "RANK=0", "WORLD_SIZE=1", "in " + here, "home is good", "no champion"} {
		if !slices.Contains(said, "stdout F "+line) {
			t.Errorf("it does not say %q", line)
		}
	}
	for _, line := range said {
		if strings.Contains(line, "TIDEMILL_AGENT_") || strings.Contains(line, "KUBERNETES_") || strings.Contains(line, "secret") {
			t.Errorf("it is told %q", line)
		}
	}
}

// If the image's home folder is writable, the command uses it.
func TestInsideItKeepsItsHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	g := newGateway(t)
	o := g.containerOptions()
	g.sh(`echo "home $HOME"`)
	if f := g.run(o); f.Outcome != tidemill.OutcomeSucceeded || !slices.Contains(g.log(), "stdout F home "+home) {
		t.Errorf("%+v %q", f, g.log())
	}
	if names, _ := os.ReadDir(home); len(names) > 0 {
		t.Errorf("something is left in it: %v", names)
	}
}

// The agent reports that the kernel killed a command for memory, with both versions of control
// groups. After any other SIGKILL, it does not report that.
func TestKilledForMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string // files of the control group at the command's start
		script string            // %s is their folder
		memory int64
		want   string
	}{
		"v2": {map[string]string{"memory.events": "low 0\noom 0\noom_kill 2\n", "memory.max": "536870912\n"},
			`printf 'oom 1\noom_kill 3\n' > %s/memory.events; kill -9 $$`, 0, "killed for memory: the limit is 512MiB (run.memory)"},
		"v1": {map[string]string{"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"},
			`printf 'oom_kill 1\n' > %s/memory/memory.oom_control; kill -9 $$`, 1 << 30, "killed for memory: the limit is 1GiB (run.memory)"},
		"a shell's child": {map[string]string{"memory.events": "oom_kill 0\n", "memory.max": "max\n"},
			`printf 'oom_kill 1\n' > %s/memory.events; exit 137`, 0, "killed for memory"},
		"a worker of it": {map[string]string{"memory.events": "oom_kill 0\n", "memory.max": "1000\n"},
			`printf 'oom_kill 1\n' > %s/memory.events; exit 3`, 0, "exit status 3; a process of it was killed for memory: the limit is 1000 bytes (run.memory)"},
		"before":          {map[string]string{"memory.events": "oom_kill 1\n"}, `: %s; kill -9 $$`, 0, "killed by SIGKILL (out of memory?)"},
		"nothing is told": {nil, `: %s; exit 3`, 0, "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			o := g.containerOptions()
			for file, text := range c.files {
				at := filepath.Join(o.Cgroup, file)
				if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			g.order.Plan.Memory = c.memory
			g.sh(fmt.Sprintf(c.script, o.Cgroup))
			if f := g.run(o); f.Outcome != tidemill.OutcomeFailed || f.Reason != c.want || f.Permanent {
				t.Errorf("%+v", f)
			}
		})
	}
}

// The command's output is passed on as it comes.
func TestEcho(t *testing.T) {
	g := newGateway(t)
	o := g.containerOptions()
	heard := make(chan string, 10)
	o.Echo = func(stream string, data []byte) { heard <- stream + " " + string(data) }
	g.sh(`echo hello; exec 1>&-; echo oh >&2`)
	g.run(o)
	close(heard)
	var all []string
	for text := range heard {
		all = append(all, text)
	}
	slices.Sort(all)
	if fmt.Sprintf("%q", all) != `["stderr oh\n" "stdout hello\n"]` {
		t.Errorf("%q", all)
	}
}

// A GPU that nvidia-smi does not list counts too.
func TestGPUSecondsInside(t *testing.T) {
	g := newGateway(t)
	o := g.containerOptions()
	o.Equip = InPod
	g.order.Plan.GPUs = 2
	g.sh(`true`)
	if f := g.run(o); f.Outcome != tidemill.OutcomeSucceeded || f.Result.GPUSeconds <= 0 {
		t.Errorf("%+v", f)
	}
}
