package realservers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Redis is a running redis-server without persistence: Tidemill's Redis may be flushed at
// any moment, so a restarted one is empty.
type Redis struct {
	dir, addr string
	ports     *ports
	proc      *process
}

// StartRedis starts a redis-server on a free loopback port and waits until it answers.
func StartRedis(ctx context.Context) (*Redis, error) { return StartRedisOn(ctx, loopback) }

// StartRedisOn is StartRedis on another address of this machine, for clients that cannot reach its
// loopback, such as the pods of a sandbox. The server requires no password, so only those clients
// should be able to reach the address.
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

// Addr returns the address of the server.
func (r *Redis) Addr() string { return r.addr }

// Restart stops the server if it runs and starts it again on the same port.
func (r *Redis) Restart(ctx context.Context) error {
	if err := r.proc.stop(); err != nil {
		return err
	}
	if err := r.proc.start(); err != nil {
		return err
	}
	return r.proc.waitReady(ctx, r.ping)
}

// Stop ends the server in the normal way.
func (r *Redis) Stop() error { return r.proc.stop() }

// Kill ends the server with SIGKILL.
func (r *Redis) Kill() error { return r.proc.kill() }

// Close ends the server and removes its files.
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

// versityGateway is an S3 server over a folder that is used in production.
const versityGateway = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// S3 clients must sign their requests with this key.
const (
	S3AccessKey = "tidemill"
	S3SecretKey = "tidemill-secret"
)

// S3 is a running server that is compatible with S3.
type S3 struct {
	dir, addr string
	ports     *ports
	proc      *process
}

// StartS3 starts the server on a free loopback port and waits until it answers. The first call on a
// machine builds the server from the Go module proxy.
func StartS3(ctx context.Context) (*S3, error) { return StartS3On(ctx, loopback) }

// buildGateway returns the folder of the program, which the first call builds.
func buildGateway(ctx context.Context) (string, error) {
	return cachedFolder("versitygw-v1.8.0", func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "install", versityGateway)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w; is the Go module proxy in reach? %s", versityGateway, err, out)
		}
		return nil
	})
}

// StartS3On is StartS3 on another address of this machine.
func StartS3On(ctx context.Context, host string) (*S3, error) {
	bin, err := buildGateway(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := takePorts(host, 1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tidemill-s3-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a folder for the S3 server: %w", err), ports.release())
	}
	s := &S3{dir: dir, addr: at(host, ports.all[0]), ports: ports}
	s.proc = &process{dir: dir, log: filepath.Join(dir, "log"), args: []string{filepath.Join(bin, "versitygw"),
		"--access", S3AccessKey, "--secret", S3SecretKey, "--port", s.addr, "--quiet", "posix", filepath.Join(dir, "buckets")}}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *S3) start(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(s.dir, "buckets"), 0o700); err != nil {
		return fmt.Errorf("make a folder for buckets: %w", err)
	}
	if err := s.proc.start(); err != nil {
		return err
	}
	return s.proc.waitReady(ctx, func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// Bucket makes an empty bucket and returns its URL for a store.
func (s *S3) Bucket(name string) (string, error) {
	if err := os.Mkdir(s.Folder(name), 0o700); err != nil {
		return "", fmt.Errorf("make bucket %s: %w", name, err)
	}
	query := url.Values{"region": {"us-east-1"}, "endpoint": {"http://" + s.addr}, "use_path_style": {"true"}}
	return "s3://" + name + "?" + query.Encode(), nil
}

// Folder returns the folder that stores a bucket's objects, one file per key, for tests
// that wait for an object.
func (s *S3) Folder(bucket string) string { return filepath.Join(s.dir, "buckets", bucket) }

// Close ends the server and removes its files.
func (s *S3) Close() error { return errors.Join(s.proc.stop(), s.ports.release(), os.RemoveAll(s.dir)) }
