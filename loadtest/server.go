package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"tidemill.dev/broker/embedded"
)

// serve is the broker's process: it says its address and lives until its
// standard input closes, which it does when the parent is gone, however.
func serve(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("serve: give a folder")
	}
	s, err := embedded.Start(ctx, embedded.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, s.Kafka())
	io.Copy(io.Discard, stdin)
	return s.Close()
}

// server is that process as its parent sees it.
type server struct {
	addr  string
	cmd   *exec.Cmd
	leash io.Closer
}

func startServer(ctx context.Context, dir string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	s := &server{cmd: exec.CommandContext(ctx, self, roleServe, dir)}
	s.cmd.Stderr = os.Stderr
	leash, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.leash = leash
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the broker: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the broker: it said no address: %w", err), s.stop())
	}
	s.addr = strings.TrimSpace(line)
	return s, nil
}

func (s *server) stop() error {
	s.leash.Close()
	return s.cmd.Wait()
}
