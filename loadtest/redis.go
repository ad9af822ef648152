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

// startRedis starts the Redis in which the gateway remembers event ids. It is the real Redis if the
// machine has one, else the embedded Redis, in either case in its own process.
type startRedis struct {
	name string
	addr string
	real *realservers.Redis
	ours *childServer
	last time.Duration // CPU time of the real one at the last meter
}

func startCache(ctx context.Context, self []string) (*startRedis, error) {
	if _, err := exec.LookPath("redis-server"); err == nil {
		r, err := realservers.StartRedis(ctx)
		if err != nil {
			return nil, err
		}
		return &startRedis{name: "redis-server", addr: r.Addr(), real: r}, nil
	}
	s, err := startServer(ctx, append(self, roleServe), "")
	if err != nil {
		return nil, err
	}
	return &startRedis{name: "the embedded Redis", addr: s.addrs[1], ours: s}, nil
}

func (c *startRedis) stop() error {
	if c.real != nil {
		return c.real.Close()
	}
	return c.ours.stop()
}

func (c *startRedis) meter() (err error) {
	if c.ours != nil {
		return c.ours.startMeasuring()
	}
	c.last, err = askCPU(c.addr)
	return err
}

func (c *startRedis) measured() (task.Result, error) {
	if c.ours != nil {
		return c.ours.stopMeasuring()
	}
	now, err := askCPU(c.addr)
	return task.Result{CPU: now - c.last}, err
}

// askCPU asks a redis-server for its CPU time.
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

// sumCPU adds the process's user and system time in INFO's answer.
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
