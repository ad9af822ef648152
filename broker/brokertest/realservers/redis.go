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

// versityGateway is a server that speaks S3 over a folder, and that people run.
const versityGateway = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// The key that S3's clients have to sign with.
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

// StartS3 starts one on a free loopback port and waits until it answers. The
// first one ever builds it from the Go module proxy.
func StartS3(ctx context.Context) (*S3, error) { return StartS3On(ctx, loopback) }

// gateway is the folder of the program, which is built the first time.
func gateway(ctx context.Context) (string, error) {
	return cached("versitygw-v1.8.0", func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "install", versityGateway)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w; is the Go module proxy in reach? %s", versityGateway, err, out)
		}
		return nil
	})
}

// StartS3On does so on another address of this machine.
func StartS3On(ctx context.Context, host string) (*S3, error) {
	bin, err := gateway(ctx)
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
	return s.proc.until(ctx, func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// Bucket makes an empty bucket and is its URL, for gocloud.dev/blob.
func (s *S3) Bucket(name string) (string, error) {
	if err := os.Mkdir(s.Folder(name), 0o700); err != nil {
		return "", fmt.Errorf("make bucket %s: %w", name, err)
	}
	query := url.Values{"region": {"us-east-1"}, "endpoint": {"http://" + s.addr}, "use_path_style": {"true"}}
	return "s3://" + name + "?" + query.Encode(), nil
}

// Folder is where a bucket's objects lie, each under its key, for those who wait
// for one.
func (s *S3) Folder(bucket string) string { return filepath.Join(s.dir, "buckets", bucket) }

// Close ends it and removes what it kept.
func (s *S3) Close() error { return errors.Join(s.proc.stop(), s.ports.release(), os.RemoveAll(s.dir)) }
