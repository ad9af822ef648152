package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

// Options configures the agent of one attempt.
type Options struct {
	Gateway string // URL
	Token   string
	Attempt string // name of the attempt
	Work    string // folder of this attempt only; removed at the end
	Cache   string // folder that attempts share
	HTTP    *http.Client
	Node    string
	// Inside says that the agent runs in the plan's image. The command then runs in this
	// container, with its variables and in its folder.
	Inside bool
	Cgroup string // folder of the container's control group; empty is Linux's default
	// Part is the role of this agent if several agents work on the attempt; empty means Worker.
	// Index is the agent's number within the role. Workers and Servers are the addresses
	// (host:port) of all agents; if both are empty, there is only this agent.
	Part             string
	Index            int
	Workers, Servers []string
	Echo             func(stream string, data []byte) // receiver of the command's output as it comes; nil is none
	// Equip returns the machine's equipment for the attempt. It may wait, for example for a free
	// GPU: the attempt sends beats meanwhile, and its deadline does not run. An error ends the run
	// for good, unless it is ErrPassing. Nil means no equipment.
	Equip func(context.Context, tidemill.Plan) (Equipment, error)
	// Started is called when the command's process runs. Ended is called when the process and its
	// group have ended.
	Started, Ended func(pid int)
	Prepare        func(*exec.Cmd) // last change to the child before its start; nil is none
	Now            func() time.Time
	Logger         *slog.Logger
}

// Equipment is a machine's contribution to an attempt.
type Equipment struct {
	Env    []string // NAME=VALUE, in addition to the contract's: secrets, GPUs
	Card   string   // product name of the GPU
	Driver string   // version of the GPU's driver
	GPUs   []int
	Engine string   // path of docker or podman, for an image
	Labels []string // NAME=VALUE labels of the container
	Image  string   // digest of the folder that runs
}

// withDefaults sets defaults for empty fields.
func (o Options) withDefaults() Options {
	if o.Part == "" {
		o.Part = Worker
	}
	if o.Cgroup == "" {
		o.Cgroup = "/sys/fs/cgroup"
	}
	if o.Echo == nil {
		o.Echo = func(string, []byte) {}
	}
	if o.HTTP == nil {
		o.HTTP = http.DefaultClient
	}
	if o.Equip == nil {
		o.Equip = func(context.Context, tidemill.Plan) (Equipment, error) { return Equipment{}, nil }
	}
	if o.Started == nil {
		o.Started = func(int) {}
	}
	if o.Ended == nil {
		o.Ended = func(int) {}
	}
	if o.Prepare == nil {
		o.Prepare = func(*exec.Cmd) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Card is a GPU.
type Card struct {
	Index           int
	Product, Driver string
}

const askCards = 20 * time.Second // an idle driver is slow to answer

// LookForCards lists the GPUs with nvidia-smi. A machine without nvidia-smi has no cards.
func LookForCards(ctx context.Context) ([]Card, error) {
	program, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askCards)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--query-gpu=index,name,driver_version", "--format=csv,noheader")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask nvidia-smi for the GPUs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return ReadCards(string(out))
}

// ReadCards reads the output of nvidia-smi: a line with index, product and driver for each GPU.
func ReadCards(text string) (all []Card, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ", ")
		if len(fields) == 1 && fields[0] == "" {
			continue
		}
		index, err := strconv.Atoi(fields[0])
		if err != nil || len(fields) != 3 {
			return nil, fmt.Errorf("read the output of nvidia-smi: %q does not have index, product and driver", line)
		}
		all = append(all, Card{index, fields[1], fields[2]})
	}
	return all, nil
}

// InPod returns the equipment of a pod: the GPUs that the pod was given. If nvidia-smi fails, the
// attempt runs without that information.
func InPod(ctx context.Context, p tidemill.Plan) (e Equipment, err error) {
	if p.GPUs == 0 {
		return e, nil
	}
	cards, err := LookForCards(ctx)
	for _, c := range cards {
		e.GPUs, e.Card, e.Driver = append(e.GPUs, c.Index), c.Product, c.Driver
	}
	if err != nil && ctx.Err() != nil {
		return e, err
	}
	return e, nil
}
