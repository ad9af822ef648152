package agent

import (
	"context"
	"log/slog"
	"net/http"
	"os/exec"
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
	GPUs   []int
	Engine string   // docker or podman, for an image
	Labels []string // NAME=VALUE, of the container
	Image  string   // digest of the folder that is run
}

// withDefaults fills in what is left out.
func (o Options) withDefaults() Options {
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
