//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"tidemill.dev/e2e/cluster/internal/box"
	"tidemill.dev/e2e/cluster/internal/node"
	"tidemill.dev/e2e/cluster/internal/recipe"
)

// wishes are the requested properties of a cluster.
type wishes struct {
	name, subnet, kubeconfig string
	gpus                     int
	product                  string
	kwok, bare               bool
}

func parseUp(args []string) (wishes, error) {
	var w wishes
	set := flag.NewFlagSet("up", flag.ContinueOnError)
	set.StringVar(&w.subnet, "subnet", "", "")
	set.StringVar(&w.kubeconfig, "kubeconfig", "", "")
	set.IntVar(&w.gpus, "gpus", 0, "")
	set.StringVar(&w.product, "gpu-product", "NVIDIA-A100-SXM4-80GB", "")
	set.BoolVar(&w.kwok, "kwok", false, "")
	set.BoolVar(&w.bare, "bare", false, "")
	name, rest, err := parse(set, args)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: up: what is %q", errUsage, rest[0])
	}
	w.name = name
	return w, err
}

// addresses is the line that up prints when the cluster is ready.
type addresses struct {
	Kubeconfig string `json:"kubeconfig"`
	Node       string `json:"node"`
	Host       string `json:"host"`
	Ingress    string `json:"ingress"`
	Domain     string `json:"domain"`
}

// up starts a cluster, prints its addresses, and keeps it.
func up(ctx context.Context, args []string, stdin *os.File, stdout, stderr io.Writer) error {
	w, err := parseUp(args)
	if err != nil {
		return err
	}
	if err := rights(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go untilClosed(stdin, cancel)
	say := teller(stderr)
	cache, err := prepare(ctx, say)
	if err != nil {
		return err
	}
	var kwok recipe.Cache
	if w.kwok {
		if kwok, err = prepareKwok(ctx, say); err != nil {
			return err
		}
	}
	held, err := cache.Hold()
	if err != nil {
		return err
	}
	defer held.Close()
	b, err := box.Open(w.name, w.subnet)
	if err != nil {
		return err
	}
	err = keep(ctx, b, w, cache, kwok, stdout, say)
	if ctx.Err() != nil && !errors.Is(err, errEnded) {
		err = nil // up was told to end, maybe before the cluster was ready
	}
	began := time.Now()
	left := b.Close(err != nil)
	say("took the sandbox down in %s", since(began))
	if err != nil {
		err = fmt.Errorf("%w\nthe logs of its components are in %s", err, b.Kept())
	}
	return errors.Join(err, left)
}

// keep starts the cluster in the box and waits for its end.
func keep(ctx context.Context, b *box.Box, w wishes, cache, kwok recipe.Cache, stdout io.Writer, say func(string, ...any)) error {
	c := &cluster{box: b, cache: cache, kwok: kwok, say: say}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := c.start(w); err != nil {
		return err
	}
	go func() {
		<-b.Ended()
		cancel(errEnded)
	}()
	err := c.settle(ctx, w)
	if err == nil {
		err = announce(b, w, stdout)
	}
	if err == nil {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	if errors.Is(context.Cause(ctx), errEnded) {
		return fmt.Errorf("%w: %w", errEnded, b.Verdict())
	}
	return err
}

var errEnded = errors.New("the sandbox ended")

func announce(b *box.Box, w wishes, stdout io.Writer) error {
	where := addresses{
		Kubeconfig: b.Kubeconfig(),
		Node:       b.Node.String(),
		Host:       b.Host.String(),
		Ingress:    fmt.Sprintf("http://%s:%d", b.Node, recipe.IngressPort),
		Domain:     recipe.Domain,
	}
	if w.bare {
		where.Ingress, where.Domain = "", ""
	}
	if w.kubeconfig != "" {
		where.Kubeconfig = w.kubeconfig
	}
	if err := json.NewEncoder(stdout).Encode(where); err != nil {
		return fmt.Errorf("say where the cluster is: %w", err)
	}
	return nil
}

// untilClosed waits for the end of standard input. /dev/null never closes, so a cluster with
// /dev/null as input ends by a signal.
func untilClosed(stdin *os.File, cancel context.CancelCauseFunc) {
	if null, err := os.Stat(os.DevNull); err == nil {
		if in, err := stdin.Stat(); err == nil && os.SameFile(null, in) {
			return
		}
	}
	io.Copy(io.Discard, stdin) // an error counts as the end
	cancel(context.Canceled)
}

func build(ctx context.Context, stdout, stderr io.Writer) error {
	say := teller(stderr)
	cache, err := prepare(ctx, say)
	if err == nil {
		_, err = prepareKwok(ctx, say) // otherwise a test would build it, within its time limit
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, cache)
	return err
}

func prepare(ctx context.Context, say func(string, ...any)) (recipe.Cache, error) {
	source, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find e2e/cluster: %w", err)
	}
	return recipe.Build(ctx, source, say)
}

func prepareKwok(ctx context.Context, say func(string, ...any)) (recipe.Cache, error) {
	source, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find e2e/cluster: %w", err)
	}
	return recipe.BuildKwok(ctx, source, say)
}

// teller returns a function that prints progress messages with the elapsed time.
func teller(stderr io.Writer) func(string, ...any) {
	began := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(stderr, "cluster %6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }

// configuration returns the node's configuration.
func configuration(b *box.Box, w wishes) (node.Node, error) {
	snapshot, err := box.Snapshotter()
	return node.Node{
		Name: b.Name, Address: b.Node, Etc: b.Etc(), Programs: b.Programs(), Cgroup: b.Cgroup(),
		GPUs: w.gpus, Product: w.product, Snapshot: snapshot, Nodes: w.kwok,
	}, err
}
