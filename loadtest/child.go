package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/loadtest/internal/task"
)

// The roles in which this program starts itself.
const (
	roleServe   = "serve"
	roleClient  = "client"
	roleBare    = "bare"
	roleGateway = "gateway"
	roleLoad    = "load"
	roleLap     = "lap"
	rolePoster  = "poster"

	roleDispatcher = "dispatcher"

	roleLaptop = "laptop"

	roleScorer = "scorer"
	roleInfer  = "infer"
	roleCache  = "cache"
)

// childProcess is a process that lives until its standard input closes. It answers each line with a
// line.
type childProcess struct {
	what    string
	cmd     *exec.Cmd
	told    io.WriteCloser
	answers *bufio.Reader
}

// startChild also returns the child's first line, by which the child reports that it is ready. In
// production the broker and the generator run on other machines. Here each child gets half of the
// cores, because a child's idle threads spin and would cost the measured servers more than its
// work.
func startChild(ctx context.Context, program []string, args ...string) (*childProcess, string, error) {
	c := &childProcess{what: program[len(program)-1], cmd: exec.CommandContext(ctx, program[0], append(program[1:], args...)...)}
	c.cmd.Stderr = os.Stderr
	if c.what == roleServe || c.what == roleLoad || c.what == roleLap {
		c.cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/2)))
	}
	var err error
	if c.told, err = c.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	c.answers = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start %s: %w", c.what, err)
	}
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("start %s: it said nothing: %w", c.what, err), c.stop())
	}
	return c, strings.TrimSpace(line), nil
}

func (c *childProcess) ask(what string) (string, error) {
	if _, err := fmt.Fprintln(c.told, what); err != nil {
		return "", fmt.Errorf("tell %s to %s: %w", c.what, what, err)
	}
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s does not %s: %w", c.what, what, err)
	}
	return line, nil
}

// kill ends the process as a crash does.
func (c *childProcess) kill() error {
	err := c.cmd.Process.Kill()
	_ = c.cmd.Wait() // Wait's error only reports the kill
	return err
}

func (c *childProcess) stop() error {
	c.told.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w", c.what, err)
	}
	return nil
}

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

// pinnedProcess is a program of any origin that runs on some of the cores until it is stopped.
type pinnedProcess struct {
	cmd    *exec.Cmd
	input  io.Closer
	output tailWriter
	ended  chan struct{}
	once   sync.Once
}

// startPinned starts a command on the cores from first to last, with util-linux's taskset. The
// program gets a standard input that stays open until stop.
func startPinned(command []string, first, last int) (*pinnedProcess, error) {
	if _, err := exec.LookPath("taskset"); err != nil {
		return nil, fmt.Errorf("start %s on its own cores: %w; install util-linux", command[0], err)
	}
	p := &pinnedProcess{cmd: exec.Command("taskset", append([]string{"-c", coreList(first, last)}, command...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.input = in
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() {
		_ = p.cmd.Wait() // its output says why it ended
		close(p.ended)
	}()
	return p, nil
}

// pinProcess moves a running process with all its threads to the cores from first to last.
func pinProcess(ctx context.Context, pid, first, last int) error {
	said, err := exec.CommandContext(ctx, "taskset", "-a", "-p", "-c", coreList(first, last), strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("move process %d to the cores %s: %w: %s; install util-linux", pid, coreList(first, last), err, said)
	}
	return nil
}

func (p *pinnedProcess) pid() int { return p.cmd.Process.Pid }

// said returns the end of the program's output.
func (p *pinnedProcess) said() string { return p.output.String() }

// stopWithin is the time after which a program that does not stop is killed.
const stopWithin = 20 * time.Second

// stop ends the program. A program of ours ends with its standard input, others with the signal.
func (p *pinnedProcess) stop() {
	p.once.Do(func() {
		p.input.Close()
		_ = p.cmd.Process.Signal(os.Interrupt) // fails only if the process has ended
		select {
		case <-p.ended:
		case <-time.After(stopWithin):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	})
}

// tailBytes is how much of a program's output is kept.
const tailBytes = 2000

// tailWriter keeps the last bytes of an output.
type tailWriter struct {
	mu  sync.Mutex
	end []byte
}

func (t *tailWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = bytes.Clone(t.end[max(0, len(t.end)-tailBytes):])
	return len(b), nil
}

func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.end))
}
