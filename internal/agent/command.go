package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev"
)

// command is the process to start, and what ends what is not in its group.
func (a *attempt) command() (cmd *exec.Cmd, kill func(), err error) {
	plan := a.partsPlan()
	if a.contained() {
		return a.container(plan)
	}
	meet, err := a.meet(0)
	if err != nil {
		return nil, nil, err
	}
	contract := contract(&a.order, a.dirs.places(), meet)
	env := variables(os.LookupEnv, plan.Env, a.gear.Env, contract)
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

// partsPlan is the plan with what this part of it runs.
func (a *attempt) partsPlan() *tidemill.Plan {
	plan := a.order.Plan
	if s := plan.Servers; s != nil && a.party.part == Server && len(s.Command) > 0 {
		plan.Command = s.Command
	}
	return &plan
}

// contained reports whether an engine runs the command.
func (a *attempt) contained() bool { return a.order.Plan.Image != "" && !a.o.Inside }

// imageRun is the plan that an engine runs; nil if none does.
func (a *attempt) imageRun() *tidemill.Plan {
	if !a.contained() {
		return nil
	}
	return a.partsPlan()
}

// find looks for the command as a shell in its folder would.
func find(p *tidemill.Plan, path string) (string, error) {
	if len(p.Command) == 0 || p.Command[0] == "" {
		return "", permanent("the recipe names no command to run: give one in run.command")
	}
	if info, err := os.Stat(p.Dir); err != nil || !info.IsDir() {
		return "", permanent("the folder %s of the recipe is not there: run.dir is relative to the folder of the config", p.Dir)
	}
	name := p.Command[0]
	if strings.ContainsRune(name, filepath.Separator) {
		return within(p.Dir, name), nil // what is wrong with it, the start tells
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

// unstarted says what is wrong with a command that does not start.
func unstarted(p *tidemill.Plan, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // else the text names what we call, not what failed
	}
	failed := func(next string) error {
		return permanent("start %s: %w%s", strings.Join(p.Command, " "), err, next)
	}
	switch {
	case isScarce(err):
		return fmt.Errorf("start %s: %w", strings.Join(p.Command, " "), err)
	case errors.Is(err, fs.ErrNotExist):
		return failed(": there is no such file, or its first line names a program that is not there")
	case errors.Is(err, fs.ErrPermission):
		return failed(": make it executable (chmod +x), or name the program that runs it")
	case isNoProgram(err):
		return failed(": its first line names no program; begin it with #! and one, or name the program in the command")
	case isTooLong(err):
		return failed(": its arguments and variables are too many together")
	}
	return failed("")
}

// container is the engine's program that runs the image.
func (a *attempt) container(plan *tidemill.Plan) (*exec.Cmd, func(), error) {
	engine := a.gear.Engine
	if engine == "" {
		return nil, nil, permanent("run the image %s: neither docker nor podman is here", a.order.Plan.Image)
	}
	meet, err := a.meet(portInside)
	if err != nil {
		return nil, nil, err
	}
	c := &container{engine: engine, name: "tidemill-" + a.o.Attempt, labels: a.gear.Labels, plan: plan, host: a.dirs.places(),
		gpus: a.gear.GPUs, uid: os.Getuid(), gid: os.Getgid(), shared: !a.party.alone()}
	if part := a.party.name(); part != "" {
		c.name += "-" + part
	}
	c.env = variables(func(string) (string, bool) { return "", false }, plan.Env, a.gear.Env, contract(&a.order, insidePlaces(), meet))
	if _, ok := c.env["HOME"]; !ok && c.uid != 0 {
		c.env["HOME"] = "/tmp" // the image knows no home of ours
	}
	if err := checkVariables(c.env); err != nil {
		return nil, nil, err
	}
	cmd := &exec.Cmd{Path: engine, Args: append([]string{engine}, c.args()...), Env: c.clientEnv(os.Environ())}
	return cmd, func() { a.endContainer(c.name) }, nil
}

const (
	portInside = 29500 // a container has all ports for itself
	engineTime = 20 * time.Second
)

// endContainer ends a container whose client was ended. One that is not there
// any more is what was wanted.
func (a *attempt) endContainer(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	_ = exec.CommandContext(ctx, a.gear.Engine, "kill", name).Run()
}

// digestOf is the digest of an image; empty if the engine does not say.
func digestOf(engine, image string) string {
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, engine, "image", "inspect", "--format", "{{range .RepoDigests}}{{.}} {{end}}{{.Id}}", image).Output()
	if fields := strings.Fields(string(out)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return ""
}
