package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/loadtest/internal/task"
)

// serve runs the broker's process. Its Redis is for a machine without redis-server.
func serve(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("serve: give a folder, or nothing in its place for memory")
	}
	s, err := embedded.Start(ctx, embedded.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, s.Kafka(), s.Redis())
	return errors.Join(serveCommands(stdin, stdout, task.Task{}), s.Close())
}

// The commands that a server obeys while it serves.
const (
	sayStart = "start" // begin to measure
	sayStop  = "stop"  // end the measurement and write it
	sayWeigh = "weigh" // write the memory in use
)

// serveCommands returns when standard input closes, because then the parent has ended for whatever reason.
// Until then it measures this process on command. The process measures itself because it knows its
// allocations, and because this works on every system.
func serveCommands(stdin io.Reader, stdout io.Writer, t task.Task) error {
	var m task.Meter
	for told := bufio.NewScanner(stdin); told.Scan(); {
		var r task.Result
		var err error
		switch told.Text() {
		case sayStart:
			err = m.Start(t)
		case sayStop:
			r, err = m.Stop(t)
		case sayWeigh:
			r = task.Weigh()
		default:
			err = fmt.Errorf("cannot %q", told.Text())
		}
		if err != nil {
			return err
		}
		if err := r.Write(stdout); err != nil {
			return err
		}
	}
	return nil
}

// server is such a process in its parent.
type server struct {
	*child
	addrs []string // addresses from its first line
}

func startServer(ctx context.Context, program []string, args ...string) (*server, error) {
	c, first, err := startChild(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	return &server{c, strings.Fields(first)}, nil
}

// meter begins to measure the process.
func (s *server) meter() error {
	_, err := s.ask(sayStart)
	return err
}

// measured returns the measurement since meter.
func (s *server) measured() (task.Result, error) { return s.result(sayStop) }

// weigh returns the memory that the process uses.
func (s *server) weigh() (task.Result, error) { return s.result(sayWeigh) }

func (s *server) result(what string) (task.Result, error) {
	var r task.Result
	line, err := s.ask(what)
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	return r, err
}
