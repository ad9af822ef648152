package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

// command returns the process to start, and a function that kills its container, if there is one.
func (a *attempt) command() (cmd *exec.Cmd, kill func(), err error) {
	plan := a.partsPlan()
	if a.isContained() {
		return a.container(plan)
	}
	meet, err := a.meet(0)
	if err != nil {
		return nil, nil, err
	}
	contract := contract(&a.order, a.dirs.places(), meet)
	env := variables(os.LookupEnv, plan.Env, a.equipment.Env, contract)
	if a.o.Inside {
		if env, err = a.insideEnv(contract); err != nil {
			return nil, nil, err
		}
		if plan.Dir, err = os.Getwd(); err != nil {
			return nil, nil, permanent("find the folder that the image begins in: %w", err)
		}
	}
	if err := checkVariables(env); err != nil {
		return nil, nil, err
	}
	path, err := find(plan, env["PATH"])
	if err != nil {
		return nil, nil, err
	}
	cmd = &exec.Cmd{Path: path, Args: plan.Command, Dir: plan.Dir, Env: pairs(env)}
	return cmd, func() {}, nil
}

// partsPlan returns the plan with the command of this part.
func (a *attempt) partsPlan() *tidemill.Plan {
	plan := a.order.Plan
	if s := plan.Servers; s != nil && a.party.part == Server && len(s.Command) > 0 {
		plan.Command = s.Command
	}
	return &plan
}

// isContained reports whether a container engine runs the command.
func (a *attempt) isContained() bool { return a.order.Plan.Image != "" && !a.o.Inside }

// imageRun returns the plan that a container engine runs; nil if no engine runs it.
func (a *attempt) imageRun() *tidemill.Plan {
	if !a.isContained() {
		return nil
	}
	return a.partsPlan()
}

// find looks up the command like a shell in the plan's folder.
func find(p *tidemill.Plan, path string) (string, error) {
	if len(p.Command) == 0 || p.Command[0] == "" {
		return "", permanent("the recipe names no command to run: give one in run.command")
	}
	if info, err := os.Stat(p.Dir); err != nil || !info.IsDir() {
		return "", permanent("the folder %s of the recipe is not there: run.dir is relative to the folder of the config", p.Dir)
	}
	name := p.Command[0]
	if strings.ContainsRune(name, filepath.Separator) {
		return within(p.Dir, name), nil // if the file is unusable, the start of the command reports that
	}
	for _, folder := range filepath.SplitList(path) {
		file := filepath.Join(within(p.Dir, folder), name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", permanent("command not found: %s is in no folder of PATH (%s); to run a file of the recipe's folder write ./%s", name, path, name)
}

func within(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// startError explains why a command did not start.
func startError(p *tidemill.Plan, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // drop the name of our system call
	}
	failed := func(next string) error {
		return permanent("start %s: %w%s", strings.Join(p.Command, " "), err, next)
	}
	switch {
	case isScarce(err):
		return fmt.Errorf("start %s: %w", strings.Join(p.Command, " "), err)
	case errors.Is(err, fs.ErrNotExist):
		return failed(": there is no such file, or its first line names a program that does not exist")
	case errors.Is(err, fs.ErrPermission):
		return failed(": make it executable (chmod +x), or name the program that runs it")
	case isNoProgram(err):
		return failed(": its first line names no program; begin it with #! and one, or name the program in the command")
	case isTooLong(err):
		return failed(": its arguments and variables are too many together")
	}
	return failed("")
}

// container returns the call of the engine that runs the image.
func (a *attempt) container(plan *tidemill.Plan) (*exec.Cmd, func(), error) {
	engine := a.equipment.Engine
	if engine == "" {
		return nil, nil, permanent("run the image %s: neither docker nor podman is here", a.order.Plan.Image)
	}
	meet, err := a.meet(portInside)
	if err != nil {
		return nil, nil, err
	}
	c := &container{engine: engine, name: "tidemill-" + a.o.Attempt, labels: a.equipment.Labels, plan: plan, host: a.dirs.places(),
		gpus: a.equipment.GPUs, uid: os.Getuid(), gid: os.Getgid(), shared: !a.party.isAlone()}
	if part := a.party.name(); part != "" {
		c.name += "-" + part
	}
	c.env = variables(func(string) (string, bool) { return "", false }, plan.Env, a.equipment.Env, contract(&a.order, insidePlaces(), meet))
	if _, ok := c.env["HOME"]; !ok && c.uid != 0 {
		c.env["HOME"] = "/tmp" // our home folder is not in the image
	}
	if err := checkVariables(c.env); err != nil {
		return nil, nil, err
	}
	cmd := &exec.Cmd{Path: engine, Args: append([]string{engine}, c.args()...), Env: c.clientEnv(os.Environ())}
	return cmd, func() { a.endContainer(c.name) }, nil
}

const (
	portInside = 29500 // any port is free inside a container
	engineTime = 20 * time.Second
)

// endContainer kills a container whose client was killed. The error is ignored, because the
// container may no longer exist.
func (a *attempt) endContainer(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	_ = exec.CommandContext(ctx, a.equipment.Engine, "kill", name).Run()
}

// digestOf returns the digest of an image; empty if the engine does not report one.
func digestOf(engine, image string) string {
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, engine, "image", "inspect", "--format", "{{range .RepoDigests}}{{.}} {{end}}{{.Id}}", image).Output()
	if fields := strings.Fields(string(out)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return ""
}

// container has the arguments with which an engine runs an image.
type container struct {
	engine   string
	name     string
	labels   []string
	plan     *tidemill.Plan
	host     places // folders on the host
	gpus     []int
	uid, gid int
	env      map[string]string
	shared   bool // whether it uses the machine's network, to reach the other workers
}

// containerRoot is the parent of the folders inside the container.
const containerRoot = "/tidemill/"

func insidePlaces() places {
	return places{containerRoot + "in", containerRoot + "out", containerRoot + "checkpoint", containerRoot + "champion", containerRoot + "event.json", containerRoot + "events.ndjson"}
}

// args returns the engine's arguments. The command replaces the image's entry point, as it does
// in a cluster.
func (c *container) args() []string {
	args := []string{"run", "--rm", "--name", c.name}
	if c.shared {
		args = append(args, "--network", "host")
	}
	for _, l := range c.labels {
		args = append(args, "--label", l)
	}
	args = append(args, c.userArgs()...)
	args = append(args, confinement()...)
	args = append(args, c.bounds()...)
	args = append(args, c.cards()...)
	args = append(args, c.mounts()...)
	args = append(args, c.variableArgs()...)
	if len(c.plan.Command) > 0 {
		args = append(args, "--entrypoint", c.plan.Command[0])
	}
	args = append(args, c.plan.Image)
	if len(c.plan.Command) > 1 {
		args = append(args, c.plan.Command[1:]...)
	}
	return args
}

// userArgs returns the arguments that run the command as our user, so that its output files are ours.
func (c *container) userArgs() []string {
	args := []string{"--user", fmt.Sprintf("%d:%d", c.uid, c.gid), "--security-opt", "label=disable"}
	if c.isPodman() && c.uid != 0 {
		args = append(args, "--userns", "keep-id")
	}
	if !c.isPodman() {
		args = append(args, "--init") // else SIGTERM has no effect on a process 1 without a handler
	}
	return args
}

// mostProcesses is the most processes and threads in a container. Without a limit, one container
// that forks without end takes the whole machine.
const mostProcesses = 16384

// confinement returns the arguments that take every right of root from the container, as a cluster
// does.
func confinement() []string {
	return []string{"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", strconv.Itoa(mostProcesses)}
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
	return append(args, "--shm-size", strconv.FormatInt(shared, 10)) // the default of 64 MiB is too small for PyTorch's data loaders
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

// quoted quotes a field of a comma-separated list.
func quoted(field string) string {
	if !strings.ContainsAny(field, ",\"") {
		return field
	}
	return `"` + strings.ReplaceAll(field, `"`, `""`) + `"`
}

// variableArgs passes the variables by name only, because every user of the machine can read arguments.
// Variables that the engine's client itself reads are passed with their value, because the client
// must not use the run's value.
func (c *container) variableArgs() (args []string) {
	for _, name := range slices.Sorted(maps.Keys(c.env)) {
		if isEngines(name) {
			args = append(args, "--env", name+"="+c.env[name])
		} else {
			args = append(args, "--env", name)
		}
	}
	return args
}

// engineNames are the prefixes of variables that an engine's client reads.
var engineNames = []string{"DOCKER_", "PODMAN_", "CONTAINER", "XDG_", "BUILDAH_", "REGISTRY_AUTH", "STORAGE_", "SSL_CERT_", "DBUS_", "SSH_AUTH_SOCK"}

func isEngines(name string) bool {
	return slices.Contains(inheritedNames, name) || slices.ContainsFunc(engineNames, func(p string) bool { return strings.HasPrefix(name, p) })
}

// clientEnv returns the environment of the engine's client.
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
