package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/loadtest/internal/task"
)

// cache is the Redis that the gateway remembers repeats in: the real one where
// there is one, else the embedded one, each in a process of its own.
type cache struct {
	name string
	addr string
	real *realservers.Redis
	ours *server
	last time.Duration // CPU at the last meter, of the real one
}

func startCache(ctx context.Context, self []string) (*cache, error) {
	if _, err := exec.LookPath("redis-server"); err == nil {
		r, err := realservers.StartRedis(ctx)
		if err != nil {
			return nil, err
		}
		return &cache{name: "redis-server", addr: r.Addr(), real: r}, nil
	}
	s, err := startServer(ctx, append(self, roleServe), "")
	if err != nil {
		return nil, err
	}
	return &cache{name: "the embedded Redis", addr: s.addrs[1], ours: s}, nil
}

func (c *cache) stop() error {
	if c.real != nil {
		return c.real.Close()
	}
	return c.ours.stop()
}

func (c *cache) meter() (err error) {
	if c.ours != nil {
		return c.ours.meter()
	}
	c.last, err = askCPU(c.addr)
	return err
}

func (c *cache) measured() (task.Result, error) {
	if c.ours != nil {
		return c.ours.measured()
	}
	now, err := askCPU(c.addr)
	return task.Result{CPU: now - c.last}, err
}

// askCPU asks a redis-server for the CPU time that it has taken.
func askCPU(addr string) (time.Duration, error) {
	to, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, fmt.Errorf("ask redis for its CPU time: %w", err)
	}
	defer to.Close()
	if _, err := to.Write([]byte("INFO cpu\r\n")); err != nil {
		return 0, fmt.Errorf("ask redis for its CPU time: %w", err)
	}
	r := bufio.NewReader(to)
	head, err := r.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("ask redis for its CPU time: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "$")))
	if err != nil {
		return 0, fmt.Errorf("ask redis for its CPU time: it answers %q", head)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return 0, fmt.Errorf("ask redis for its CPU time: %w", err)
	}
	return sumCPU(text)
}

// sumCPU adds user and system time of the process in INFO's answer.
func sumCPU(info []byte) (sum time.Duration, err error) {
	found := 0
	for line := range bytes.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		if name != "used_cpu_user" && name != "used_cpu_sys" {
			continue
		}
		took, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("read redis's CPU time: %w", err)
		}
		sum += seconds(took)
		found++
	}
	if found != 2 {
		return 0, errors.New("read redis's CPU time: its INFO does not tell it")
	}
	return sum, nil
}
