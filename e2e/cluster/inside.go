//go:build linux

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"

	"tidemill.dev/e2e/cluster/internal/box"
	"tidemill.dev/e2e/cluster/internal/node"
)

// images imports images into the node of a running sandbox.
func images(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 || args[0] != "import" {
		return fmt.Errorf("%w: images: it can import", errUsage)
	}
	name, files, err := parse(flag.NewFlagSet("images import", flag.ContinueOnError), args[1:])
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%w: images import: name a tar", errUsage)
	}
	place, err := box.PlaceOf(name)
	if err != nil {
		return err
	}
	for _, file := range files {
		said, err := importImage(ctx, place, file)
		if err != nil {
			return err
		}
		if _, err := stdout.Write(said); err != nil {
			return err
		}
	}
	return nil
}

// importImage passes a tar file to containerd through a pipe, because the sandbox may not see the
// file.
func importImage(ctx context.Context, place box.Place, file string) ([]byte, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open an image: %w", err)
	}
	defer in.Close()
	cmd, err := inside(ctx, place, "ctr", "--connect-timeout", patience.String(), "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "import", "-")
	if err != nil {
		return nil, err
	}
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("import the image %s: %w: %s", file, err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.Bytes(), nil
}

// enter runs a command on the node.
func enter(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	name, command, err := parse(flag.NewFlagSet("enter", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		command = []string{"sh"}
	}
	place, err := box.PlaceOf(name)
	if err != nil {
		return err
	}
	cmd, err := inside(ctx, place, command...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s in the sandbox %s: %w", command[0], name, err)
	}
	return nil
}

// inside returns a command that runs in the sandbox. Its environment has the cluster's programs in
// PATH, and kubectl's settings.
func inside(ctx context.Context, place box.Place, command ...string) (*exec.Cmd, error) {
	enter, err := place.Enter()
	if err != nil {
		return nil, err
	}
	n := node.Node{Programs: place.Programs()}
	args := append(enter[1:], "--", "env")
	args = append(args, n.Environment()...)
	args = append(args, "KUBECONFIG="+place.Kubeconfig(), "CONTAINERD_NAMESPACE=k8s.io")
	return exec.CommandContext(ctx, enter[0], append(args, command...)...), nil
}
