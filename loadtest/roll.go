package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// startTimes records which keys' trainers have begun. The trainers report their start over a
// socket.
type startTimes struct {
	path string
	c    *net.UnixConn

	mu    sync.Mutex
	began map[string][]time.Time // start times by key
	more  chan struct{}          // closed when a trainer reports
}

func openRoll(folder string) (*startTimes, error) {
	r := &startTimes{path: filepath.Join(folder, "roll"), began: map[string][]time.Time{}, more: make(chan struct{})}
	var err error
	if r.c, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: r.path, Net: "unixgram"}); err != nil {
		return nil, fmt.Errorf("listen for trainers: %w", err)
	}
	go r.readReports()
	return r, nil
}

// readReports reads the trainers' reports until the socket is closed.
func (r *startTimes) readReports() {
	b := make([]byte, 512)
	for {
		n, err := r.c.Read(b)
		if err != nil {
			return
		}
		key, at, _ := bytes.Cut(b[:n], []byte(" "))
		nanos, _ := strconv.ParseInt(string(at), 10, 64)
		r.mu.Lock()
		r.began[string(key)] = append(r.began[string(key)], time.Unix(0, nanos))
		close(r.more)
		r.more = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *startTimes) close() { r.c.Close() }

// trainerStarts returns the times at which a key's trainers began.
func (r *startTimes) trainerStarts(key string) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.began[key]
}

// keys returns the number of keys whose trainers have begun.
func (r *startTimes) keys() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.began)
}

// waitForKeys waits until the trainers of the given number of keys have begun.
func (r *startTimes) waitForKeys(ctx context.Context, keys int) error {
	for {
		r.mu.Lock()
		n, more := len(r.began), r.more
		r.mu.Unlock()
		if n >= keys {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d keys have begun: %w", n, keys, context.Cause(ctx))
		}
	}
}

// forkExec starts the same trainer n times, some at once, and nothing else. Its rate is the upper
// bound for runs per second.
func forkExec(ctx context.Context, program, socket string, n, atOnce int) (time.Duration, error) {
	began, next := time.Now(), make(chan int)
	var all sync.WaitGroup
	failed := make(chan error, atOnce)
	for range atOnce {
		all.Go(func() {
			for i := range next {
				if err := trainer(ctx, program, socket, "bare-"+strconv.Itoa(i)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	err := feed(n, next, failed)
	close(next)
	all.Wait()
	return time.Since(began), err
}

func feed(n int, next chan<- int, failed <-chan error) error {
	for i := range n {
		select {
		case next <- i:
		case err := <-failed:
			return err
		}
	}
	return nil
}

func trainer(ctx context.Context, program, socket, key string) error {
	cmd := exec.CommandContext(ctx, program, socket)
	cmd.Env = append(os.Environ(), "TIDEMILL_KEY="+key)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start a trainer: %w: %s", err, out)
	}
	return nil
}
