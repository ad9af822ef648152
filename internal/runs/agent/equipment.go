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

// Options say which attempt, and where it works.
type Options struct {
	Gateway string // URL
	Token   string
	Attempt string // its name
	Work    string // a folder of its own, removed at the end
	Cache   string // a folder that attempts share; empty is none
	HTTP    *http.Client
	Node    string
	// Inside says that the plan's image is where we are already: the command runs
	// here, with the variables and in the folder that its container has.
	Inside bool
	Cgroup string // where the container's memory is counted; empty is where Linux has it
	// Part is which of several that work on the attempt together this one is, a
	// Worker if empty; Index is its number among them. Workers and Servers are the
	// addresses, host:port, of all; without any it is alone.
	Part             string
	Index            int
	Workers, Servers []string
	Echo             func(stream string, data []byte) // what the command says, as it comes; nil is nobody
	// Equip says what the machine gives the attempt. It may wait, for a card to
	// be free say: the attempt beats by then, and its deadline does not run. An
	// error of it ends the run for good, unless it is ErrPassing. Nil is nothing.
	Equip func(context.Context, tidemill.Plan) (Equipment, error)
	// Started is told of the command's process once it runs, and Ended once it
	// and its group are no more. Nil is nobody.
	Started, Ended func(pid int)
	Prepare        func(*exec.Cmd) // last word on the child; nil is none
	Now            func() time.Time
	Logger         *slog.Logger
}

// Equipment is what a machine gives an attempt.
type Equipment struct {
	Env    []string // NAME=VALUE, besides what the contract says: secrets, GPUs
	Card   string   // the GPU's product
	Driver string   // its version
	GPUs   []int
	Engine string   // docker or podman, for an image
	Labels []string // NAME=VALUE, of the container
	Image  string   // digest of the folder that is run
}

// withDefaults fills in what is left out.
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

const askCards = 20 * time.Second // a driver that was not used for long takes a while

// LookForCards asks nvidia-smi; a machine without it has none.
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

// ReadCards reads a card a line: index, product, driver.
func ReadCards(text string) (all []Card, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ", ")
		if len(fields) == 1 && fields[0] == "" {
			continue
		}
		index, err := strconv.Atoi(fields[0])
		if err != nil || len(fields) != 3 {
			return nil, fmt.Errorf("read what nvidia-smi says of the GPUs: %q is no index, product and driver", line)
		}
		all = append(all, Card{index, fields[1], fields[2]})
	}
	return all, nil
}

// InPod is what a pod gives its attempt: the cards that it was given. What they
// are is worth knowing, and no reason to run nothing.
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
