package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// build builds e2e/cluster's program, which takes a moment with Go's cache. All builds share one
// folder, because simultaneous builds give the same program.
func build(ctx context.Context) (program, dir string, err error) {
	rig, err := moduleFolder(ctx)
	if err != nil {
		return "", "", err
	}
	dir = filepath.Join(filepath.Dir(rig), "cluster")
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", fmt.Errorf("find the cache for the cluster's program: %w", err)
	}
	program = filepath.Join(cache, "tidemill", "cluster", "cluster")
	own := fmt.Sprintf("%s.%d", program, os.Getpid())
	cmd := exec.CommandContext(ctx, "go", "build", "-C", dir, "-o", own, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("build e2e/cluster: %w: %s", err, said)
	}
	// A running program cannot be overwritten, but it can be replaced.
	if err := os.Rename(own, program); err != nil {
		return "", "", fmt.Errorf("put the cluster's program in place: %w", err)
	}
	return program, dir, nil
}

// moduleFolder returns the folder of the test's go.mod: e2e/kube.
func moduleFolder(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for the module's folder: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// child is the running program.
type child struct {
	program string
	cmd     *exec.Cmd
	stdin   io.Closer
	line    chan []byte   // receives the child's only line, then is closed
	ended   chan struct{} // closed when the child has exited
	err     error         // error of the child's exit; valid after ended is closed
}

// start runs the program in its folder, because the program reads there what it builds the cluster
// from.
func start(program, dir string, args []string, progress io.Writer) (*child, error) {
	if progress == nil {
		progress = os.Stderr
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Stderr = progress
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to %s: %w", program, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe from %s: %w", program, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	c := &child{program: program, cmd: cmd, stdin: stdin, line: make(chan []byte, 1), ended: make(chan struct{})}
	go c.readOutput(stdout)
	return c, nil
}

// readOutput reads the child's output to its end before it waits for the exit, because Wait closes the
// pipe.
func (c *child) readOutput(stdout io.Reader) {
	defer close(c.ended)
	in := bufio.NewReader(stdout)
	if line, err := in.ReadBytes('\n'); err == nil {
		c.line <- line
	}
	close(c.line)
	_, drained := io.Copy(io.Discard, in)
	c.err = errors.Join(c.cmd.Wait(), drained)
}

// ready waits for the line with the sandbox's addresses.
func (c *child) ready(ctx context.Context) ([]byte, error) {
	select {
	case line, ok := <-c.line:
		if ok {
			return line, nil
		}
		<-c.ended
		return nil, errors.New("the cluster did not come up; its progress says why")
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the cluster: %w", context.Cause(ctx))
	}
}

// close ends the child by closing its standard input, and waits.
func (c *child) close() error {
	c.stdin.Close()
	<-c.ended
	var exit *exec.ExitError
	if errors.As(c.err, &exit) && exit.ExitCode() == exitCannot {
		return ErrCannot
	}
	if c.err != nil {
		return fmt.Errorf("end the sandbox: %w; its progress says why", c.err)
	}
	return nil
}
