package agent

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
)

// container is how an engine is asked to run an image.
type container struct {
	engine   string
	name     string
	labels   []string
	plan     *tidemill.Plan
	host     places // where the folders are here
	gpus     []int
	uid, gid int
	env      map[string]string
	shared   bool // it has the machine's network, where the other workers are
}

// below is where the folders are inside.
const below = "/tidemill/"

func insidePlaces() places {
	return places{below + "in", below + "out", below + "checkpoint", below + "champion", below + "event.json", below + "events.ndjson"}
}

// args are the engine's. The image's entry point gives way to the command, as it
// does in a cluster.
func (c *container) args() []string {
	args := []string{"run", "--rm", "--name", c.name}
	if c.shared {
		args = append(args, "--network", "host")
	}
	for _, l := range c.labels {
		args = append(args, "--label", l)
	}
	args = append(args, c.who()...)
	args = append(args, c.bounds()...)
	args = append(args, c.cards()...)
	args = append(args, c.mounts()...)
	args = append(args, c.given()...)
	if len(c.plan.Command) > 0 {
		args = append(args, "--entrypoint", c.plan.Command[0])
	}
	args = append(args, c.plan.Image)
	if len(c.plan.Command) > 1 {
		args = append(args, c.plan.Command[1:]...)
	}
	return args
}

// who is the user inside: ours, so that what it makes is ours.
func (c *container) who() []string {
	args := []string{"--user", fmt.Sprintf("%d:%d", c.uid, c.gid), "--security-opt", "label=disable"}
	if c.isPodman() && c.uid != 0 {
		args = append(args, "--userns", "keep-id")
	}
	if !c.isPodman() {
		args = append(args, "--init") // else a command that heeds no SIGTERM as process 1 is killed
	}
	return args
}

func (c *container) isPodman() bool { return strings.HasSuffix(c.engine, "podman") }

func (c *container) bounds() (args []string) {
	if c.plan.CPU > 0 {
		args = append(args, "--cpus", strconv.FormatFloat(c.plan.CPU, 'f', -1, 64))
	}
	shared := int64(1 << 30)
	if m := c.plan.Memory; m > 0 {
		bytes := strconv.FormatInt(m, 10)
		args = append(args, "--memory", bytes, "--memory-swap", bytes)
		shared = min(shared, m/2)
	}
	return append(args, "--shm-size", strconv.FormatInt(shared, 10)) // 64 MiB is too little for the loaders of PyTorch
}

func (c *container) cards() (args []string) {
	if len(c.gpus) == 0 {
		return nil
	}
	texts := make([]string, len(c.gpus))
	for i, g := range c.gpus {
		texts[i] = strconv.Itoa(g)
		args = append(args, "--device", "nvidia.com/gpu="+texts[i])
	}
	if c.isPodman() {
		return args
	}
	return []string{"--gpus", `"device=` + strings.Join(texts, ",") + `"`}
}

func (c *container) mounts() (args []string) {
	inside := insidePlaces()
	for _, m := range []struct {
		from, to string
		write    bool
	}{
		{c.host.in, inside.in, false}, {c.host.out, inside.out, true},
		{c.host.checkpoint, inside.checkpoint, true}, {c.host.champion, inside.champion, false},
		{c.host.event, inside.event, false}, {c.host.events, inside.events, false},
	} {
		mount := "type=bind," + quoted("source="+m.from) + ",target=" + m.to
		if !m.write {
			mount += ",readonly"
		}
		args = append(args, "--mount", mount)
	}
	return args
}

// quoted is a field of comma-separated ones.
func quoted(field string) string {
	if !strings.ContainsAny(field, ",\"") {
		return field
	}
	return `"` + strings.ReplaceAll(field, `"`, `""`) + `"`
}

// given are the variables by their names alone: a value among the arguments
// everybody on the machine can read. Those that the engine's own program heeds
// have to be given so, for it is not to heed them.
func (c *container) given() (args []string) {
	for _, name := range slices.Sorted(maps.Keys(c.env)) {
		if isEngines(name) {
			args = append(args, "--env", name+"="+c.env[name])
		} else {
			args = append(args, "--env", name)
		}
	}
	return args
}

// engineNames begin the variables that tell an engine's program where its engine
// is and who asks.
var engineNames = []string{"DOCKER_", "PODMAN_", "CONTAINER", "XDG_", "BUILDAH_", "REGISTRY_AUTH", "STORAGE_", "SSL_CERT_", "DBUS_", "SSH_AUTH_SOCK"}

func isEngines(name string) bool {
	return slices.Contains(inherited, name) || slices.ContainsFunc(engineNames, func(p string) bool { return strings.HasPrefix(name, p) })
}

// clientEnv are the engine's program's own variables.
func (c *container) clientEnv(ours []string) []string {
	env := map[string]string{}
	for _, pair := range ours {
		if name, v, _ := strings.Cut(pair, "="); isEngines(name) {
			env[name] = v
		}
	}
	for name, v := range c.env {
		if !isEngines(name) {
			env[name] = v
		}
	}
	return pairs(env)
}
