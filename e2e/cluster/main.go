//go:build linux

// Command cluster starts a real Kubernetes with a real Knative Serving in a sandbox on this
// machine, and removes it again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"tidemill.dev/e2e/cluster/internal/box"
)

const usage = `usage: cluster COMMAND [flags], in e2e/cluster

  up --name NAME              start a cluster; it stays until standard input closes or a signal comes
      --subnet 10.231.0.0/30    the addresses of this machine and of the node; without it, free ones
      --kubeconfig FILE         write the kubeconfig there too
      --gpus 2                  give the node this number of nvidia.com/gpu
      --gpu-product NAME        label the node with this card
      --bare                    without Knative, in a third of the time
      --kwok                    simulate nodes with the annotation kwok.x-k8s.io/node=fake
  down --name NAME            end a cluster, or remove the rest of a killed one
  rights                      list what this machine lacks for a cluster
  build                       build everything that up needs, and print its folder
  images import --name NAME TAR...
                              import images into the node: OCI layouts or output of docker save
  enter --name NAME -- COMMAND...
                              run a command on the node in the sandbox
`

const (
	exitFailed = 1
	exitUsage  = 2
	exitCannot = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	os.Exit(report(os.Stderr, run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}

// errUsage means that the arguments are wrong.
var errUsage = errors.New("arguments not understood")

// errCannot means that this machine cannot have a sandbox.
var errCannot = errors.New("this machine cannot have a cluster in a sandbox")

func report(stderr io.Writer, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "cluster: %v\n\n%s", err, usage)
		return exitUsage
	}
	fmt.Fprintf(stderr, "cluster: %v\n", err)
	if errors.Is(err, errCannot) {
		return exitCannot
	}
	return exitFailed
}

func run(ctx context.Context, args []string, stdin *os.File, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return flag.ErrHelp
	}
	name, rest := args[0], args[1:]
	switch name {
	case box.InitArgument:
		return withPlan(rest, box.Init)
	case box.NodeArgument:
		return withPlan(rest, box.Supervise)
	case box.TryArgument:
		return box.Try()
	case "up":
		return up(ctx, rest, stdin, stdout, stderr)
	case "down":
		return down(rest)
	case "rights":
		return rights()
	case "build":
		return build(ctx, stdout, stderr)
	case "images":
		return images(ctx, rest, stdout)
	case "enter":
		return enter(ctx, rest, stdin, stdout, stderr)
	case "help", "-h", "--help":
		return flag.ErrHelp
	}
	return fmt.Errorf("%w: there is no command %q", errUsage, name)
}

func withPlan(args []string, do func(string) error) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: only a sandbox calls this command", errUsage)
	}
	return do(args[0])
}

// parse reads flags of a command that needs a name.
func parse(set *flag.FlagSet, args []string) (name string, rest []string, err error) {
	set.SetOutput(io.Discard)
	set.StringVar(&name, "name", "", "")
	if err := set.Parse(args); err != nil {
		return "", nil, fmt.Errorf("%w: %s: %w", errUsage, set.Name(), err)
	}
	if name == "" {
		return "", nil, fmt.Errorf("%w: %s: give the sandbox's --name", errUsage, set.Name())
	}
	return name, set.Args(), nil
}

func rights() error {
	if err := box.Rights(); err != nil {
		return fmt.Errorf("%w: %w", errCannot, err)
	}
	return nil
}

func down(args []string) error {
	name, _, err := parse(flag.NewFlagSet("down", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	return box.Down(name)
}
