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

// runBroker runs the broker's process. Its Redis is for a machine without redis-server.
func runBroker(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
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

// serveCommands returns when standard input closes, because then the parent has ended. Until then
// it measures this process on command. The process measures itself because it knows its
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
			err = task.WriteHeap(t)
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

// childServer is a server's process as its parent sees it.
type childServer struct {
	*childProcess
	addrs []string // addresses from its first line
}

func startServer(ctx context.Context, program []string, args ...string) (*childServer, error) {
	c, first, err := startChild(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	return &childServer{c, strings.Fields(first)}, nil
}

// startMeasuring begins to measure the process.
func (s *childServer) startMeasuring() error {
	_, err := s.ask(sayStart)
	return err
}

// stopMeasuring returns the measurement since startMeasuring.
func (s *childServer) stopMeasuring() (task.Result, error) { return s.result(sayStop) }

// memoryUse returns the memory that the process uses.
func (s *childServer) memoryUse() (task.Result, error) { return s.result(sayWeigh) }

func (s *childServer) result(what string) (task.Result, error) {
	var r task.Result
	line, err := s.ask(what)
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	return r, err
}
