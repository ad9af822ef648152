package realservers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Redis is a running redis-server, without persistence: ours may be flushed at
// any moment, so a restarted one is empty.
type Redis struct {
	dir, addr string
	ports     *ports
	proc      *process
}

// StartRedis starts a redis-server on a free loopback port and waits until it
// answers.
func StartRedis(ctx context.Context) (*Redis, error) { return StartRedisOn(ctx, loopback) }

// StartRedisOn does so on another address of this machine, for those who cannot
// reach its loopback, such as the pods of a sandbox. It asks for no password:
// the address shall be one that only they reach.
func StartRedisOn(ctx context.Context, host string) (*Redis, error) {
	ports, err := takePorts(host, 1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tidemill-redis-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a folder for redis: %w", err), ports.release())
	}
	r := &Redis{dir: dir, addr: at(host, ports.all[0]), ports: ports}
	r.proc = &process{dir: dir, log: filepath.Join(dir, "log"), args: []string{"redis-server",
		"--bind", host, "--protected-mode", "no", "--port", strconv.Itoa(ports.all[0]), "--dir", dir, "--save", "", "--appendonly", "no"}}
	if err := r.Restart(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Addr is where it listens.
func (r *Redis) Addr() string { return r.addr }

// Restart starts it again, on the same port, and stops it first if it runs.
func (r *Redis) Restart(ctx context.Context) error {
	if err := r.proc.stop(); err != nil {
		return err
	}
	if err := r.proc.start(); err != nil {
		return err
	}
	return r.proc.until(ctx, r.ping)
}

// Stop ends it in order.
func (r *Redis) Stop() error { return r.proc.stop() }

// Kill ends it with SIGKILL.
func (r *Redis) Kill() error { return r.proc.kill() }

// Close ends it and removes what it wrote.
func (r *Redis) Close() error {
	return errors.Join(r.proc.stop(), r.ports.release(), os.RemoveAll(r.dir))
}

func (r *Redis) ping(ctx context.Context) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", r.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "+PONG\r\n" {
		err = fmt.Errorf("redis answers %q", line)
	}
	return err
}
