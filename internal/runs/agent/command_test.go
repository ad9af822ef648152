//go:build linux

package agent

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

var update = flag.Bool("update", false, "write the golden files")

func TestArguments(t *testing.T) {
	host := folders{"/data/work/run1-1"}.places()
	meet, err := meeting(Worker, 0, []string{"127.0.0.1:29500"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	env := contract(orderOf(), insidePlaces(), meet)
	env["HF_TOKEN"], env["PATH"], env["HOME"] = "secret", "/opt/bin", "/tmp"
	large := planOfImage()
	large.CPU, large.Memory, large.Command = 1.5, 1<<30, nil
	for name, c := range map[string]container{
		"docker":      {engine: "/usr/bin/docker", uid: 1000, gid: 100, plan: planOfImage()},
		"docker-gpus": {engine: "/usr/bin/docker", uid: 0, plan: large, gpus: []int{0, 3}},
		"podman-gpus": {engine: "/usr/bin/podman", uid: 1000, gid: 100, plan: large, gpus: []int{0, 3}},
	} {
		c.name, c.labels, c.host, c.env = "tidemill-run1-1", []string{"tidemill.cookie=c"}, host, env
		got := strings.Join(c.args(), "\n") + "\n\n" + strings.Join(c.clientEnv([]string{"PATH=/usr/bin", "HOME=/home/ada", "DOCKER_HOST=tcp://x", "AWS_SECRET=ours", "XDG_RUNTIME_DIR=/run/1"}), "\n") + "\n"
		file := filepath.Join("testdata", name+".args")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got != string(want) {
			t.Errorf("%s: other arguments (%v):\n%s", name, err, got)
		}
		for _, want := range []string{"--cap-drop ALL", "--security-opt no-new-privileges", "--pids-limit "} {
			if !strings.Contains(strings.Join(c.args(), " "), want) {
				t.Errorf("%s: the container may do more than its command needs: no %s", name, want)
			}
		}
		if strings.Contains(strings.Join(c.args(), " "), "secret") {
			t.Errorf("%s: a secret stands among the arguments", name)
		}
	}
}

func TestAFolderWithACommaIsMounted(t *testing.T) {
	c := container{plan: planOfImage(), host: folders{`/a,"b`}.places()}
	if got := c.mounts()[1]; got != `type=bind,"source=/a,""b/in",target=/tidemill/in,readonly` {
		t.Error(got)
	}
}

// fakeEngine behaves like docker for our arguments, without a container.
const fakeEngine = `#!/bin/sh
echo "$@" >> "$0.asked"
case "$1" in
kill) kill -9 -$(cat "$0.pid"); exit 0;;
image) echo "trainer@sha256:abc sha256:def"; exit 0;;
esac
while test $# -gt 0; do
	case "$1" in
	--mount) from=${2#type=bind,source=}; to=${from#*target=}; eval "$(echo "${to%%,*}" | tr /. __)=${from%%,*}"; shift;;
	--entrypoint) command=$2; shift;;
	trainer:3) shift; break;;
	esac
	shift
done
export TIDEMILL_OUT=$_tidemill_out TIDEMILL_IN=$_tidemill_in
setsid "$command" "$@" & echo $! > "$0.pid"
wait $!`

func TestRunOfAnImage(t *testing.T) {
	engine := filepath.Join(t.TempDir(), "docker")
	if err := os.WriteFile(engine, []byte(fakeEngine), 0o755); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t)
	tree := g.addTree(map[string]string{"a": "b"})
	g.order.Plan.Inputs = []tidemill.Input{{Name: "i", Tree: tree.Tree}}
	g.order.Plan.Image, g.order.Plan.Dir = "trainer:3", ""
	g.sh(`echo hello; cp $TIDEMILL_IN/i/a $TIDEMILL_OUT/made; echo $SECRET > $TIDEMILL_OUT/secret; exit $CODE`)
	for code, reason := range map[string]string{"0": "", "1": "exit status 1", "127": "has no command"} {
		g.set(func() { g.finished, g.order.Plan.Env = nil, map[string]string{"CODE": code} })
		o := g.options()
		o.Equip = equipped(engine)
		f := g.run(o)
		if !strings.Contains(f.Reason, reason) || (f.Outcome == tidemill.OutcomeSucceeded) != (code == "0") || f.Where.Image != "trainer@sha256:abc" || f.Result.PeakMemory != 0 {
			t.Errorf("%s: it ended so: %+v", code, f)
		}
		if code == "0" && (g.content(f.Files)["made"] != "b" || g.content(f.Files)["secret"] != "ours\n") {
			t.Errorf("it made %v", g.content(f.Files))
		}
	}
}

// A container's processes are not in its client's process group, but they are killed too.
func TestAnImageIsKilled(t *testing.T) {
	engine := filepath.Join(t.TempDir(), "docker")
	if err := os.WriteFile(engine, []byte(fakeEngine), 0o755); err != nil {
		t.Fatal(err)
	}
	f, reason := tooLate(t, func(g *gateway) Options {
		g.order.Plan.Image, g.order.Plan.Grace = "trainer:3", 300*time.Millisecond
		g.sh(`trap "" TERM; echo $$; sleep 600; sleep 600`)
		o := g.options()
		o.Equip = equipped(engine)
		return o
	})
	if f.Outcome != tidemill.OutcomeFailed || f.Reason != reason {
		t.Errorf("it ended so: %+v, not by the %s", f, reason)
	}
	asked, err := os.ReadFile(engine + ".asked")
	if err != nil || !strings.Contains(string(asked), "\nkill tidemill-run1-1\n") {
		t.Errorf("the engine was asked for %q (%v)", asked, err)
	}
	pid := strings.Fields(f.Result.LastLines)[0]
	waitGone(t, "what is in the container", func(_, _ string, p int) bool { return pid == strconv.Itoa(p) })
}

func TestNoEngine(t *testing.T) {
	g := newGateway(t)
	g.order.Plan.Image = "trainer:3"
	if f := g.run(g.options()); !f.Permanent || !strings.Contains(f.Reason, "neither docker nor podman is here") {
		t.Errorf("it ended so: %+v", f)
	}
}

func equipped(engine string) func(context.Context, tidemill.Plan) (Equipment, error) {
	return func(context.Context, tidemill.Plan) (Equipment, error) {
		return Equipment{Engine: engine, Labels: []string{"tidemill.cookie=c"}, Env: []string{"SECRET=ours"}}, nil
	}
}

func orderOf() *api.Order {
	return &api.Order{Run: "run1", Recipe: "intent", Key: "bot-42", Attempt: 1}
}
