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

// serve is the broker's process. Its Redis is for a machine without one.
func serve(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("serve: give a folder, or nothing in its place for memory")
	}
	s, err := embedded.Start(ctx, embedded.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, s.Kafka(), s.Redis())
	return errors.Join(leash(stdin, stdout, task.Task{}), s.Close())
}

// What a server is told while it serves.
const (
	sayStart = "start" // measuring
	sayStop  = "stop"  // and say what was measured
	sayWeigh = "weigh" // say how much memory is in use
)

// leash lives until standard input closes, which it does when the parent is
// gone, however; until then it measures this process when it is told to. The
// process says so itself because then its allocations are known too, and there
// is one way for every system.
func leash(stdin io.Reader, stdout io.Writer, t task.Task) error {
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

// server is such a process as its parent sees it.
type server struct {
	*child
	addrs []string // what it said first
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

// measured is what the process took since meter.
func (s *server) measured() (task.Result, error) { return s.result(sayStop) }

// weigh is how much memory the process uses.
func (s *server) weigh() (task.Result, error) { return s.result(sayWeigh) }

func (s *server) result(what string) (task.Result, error) {
	var r task.Result
	line, err := s.ask(what)
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	return r, err
}
