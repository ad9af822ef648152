package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Argument is the argument with which the program calls itself as a child.
const Argument = "onnx-runtime-child"

// Operations of a request. A request is three words: the operation, the session, and the bytes that
// follow (of a file) or that the shared memory has (of a batch). The answer is the status and its
// bytes: a description as JSON follows, or the shared memory has the outputs or an error's text.
const (
	opOpen = iota + 1
	opLoad
	opRun
	opClose
)

const (
	statusOK = iota + 1
	statusFailed
	statusMissing // ONNX Runtime is not installed
)

const (
	laneBytes    = 256 << 20 // size of the shared memory of a lane; only what was used takes memory
	requestBytes = 3 * word
	answerBytes  = 2 * word
	firstFile    = 3
)

// Session is a model in the child.
type Session interface {
	Inputs() []tensor.Spec
	Outputs() []tensor.Spec
	Metadata() map[string]string
	Labels() []string
	Bytes() int64
	Run(in, out []tensor.Tensor) error
	Close()
}

// Engine loads models in the child.
type Engine interface {
	Open() (version, path string, err error)
	Load(file []byte) (Session, error)
}

// library is ONNX Runtime.
type library struct{ r *ort.Runtime }

// Open loads the library.
func (l *library) Open() (version, path string, err error) {
	if l.r, err = ort.Open(""); err != nil {
		return "", "", err
	}
	version, path = l.r.Version()
	return version, path, nil
}

// Load makes a session.
func (l *library) Load(file []byte) (Session, error) {
	p, err := l.r.Load(file)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Child is the main function of the child. It answers until the parent closes the connections.
func Child(lanes string) error { return Serve(lanes, &library{}) }

// Serve is Child with another engine, for tests.
func Serve(lanes string, e Engine) error {
	n, err := strconv.Atoi(lanes)
	if err != nil || n < 1 {
		return fmt.Errorf("%s: only Tidemill calls itself with this argument", Argument)
	}
	c := &child{engine: e, sessions: map[uint64]Session{}}
	first, err := openLane(0)
	if err != nil {
		return err
	}
	closeOthers(firstFile + 2*n)
	if err := c.open(first); err != nil {
		return err
	}
	ended := make(chan error, n)
	for i := range n {
		l := first
		if i > 0 {
			if l, err = openLane(i); err != nil {
				return err
			}
		}
		go func() { ended <- c.serve(l) }()
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		return err
	}
	return nil // the parent has ended, so a session that hangs does not keep the child alive
}

type child struct {
	engine   Engine
	mu       sync.Mutex
	sessions map[uint64]Session
}

// childLane is one of the connections to the parent. A request is answered before the next one.
type childLane struct {
	conn    int
	memory  []byte
	in, out []tensor.Tensor
	request [requestBytes]byte
	answer  [answerBytes]byte
}

func openLane(i int) (*childLane, error) {
	memory, err := unix.Mmap(firstFile+2*i+1, 0, laneBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the shared memory: %w", err)
	}
	return &childLane{conn: firstFile + 2*i, memory: memory}, nil
}

// closeOthers closes the files of the parent that this process must not have. The runtime's own
// files have no name in a file system.
func closeOthers(from int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < from {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || len(to) > 11 && to[:11] == "anon_inode:" {
			continue
		}
		_ = syscall.Close(fd)
	}
}

// opened is what the child says about itself.
type opened struct {
	Version, Path string
	Weaker        []string // protections that the system does not have
	Data          uint64   // bytes of the process's memory, which the limit must allow besides models
}

// open loads the library, and gives up all rights that the child does not need afterwards.
func (c *child) open(l *childLane) error {
	op, _, _, err := l.next()
	if err != nil || op != opOpen {
		return fmt.Errorf("read the first request: %w", err)
	}
	var told opened
	told.Version, told.Path, err = c.engine.Open()
	if errors.Is(err, ort.ErrMissing) {
		return l.reply(statusMissing, []byte(err.Error()))
	}
	if err != nil {
		return l.reply(statusFailed, []byte(err.Error()))
	}
	told.Data = dataBytes() // before no file can be opened
	told.Weaker = giveUpRights()
	return l.describe(told)
}

func (c *child) serve(l *childLane) error {
	for {
		op, id, n, err := l.next()
		if err == nil {
			err = c.answer(l, op, id, n)
		}
		if err != nil {
			return err
		}
	}
}

func (c *child) answer(l *childLane, op int, id uint64, n int) error {
	switch op {
	case opLoad:
		return c.load(l, id, n)
	case opRun:
		return c.run(l, id, n)
	case opClose:
		c.mu.Lock()
		s := c.sessions[id]
		delete(c.sessions, id)
		c.mu.Unlock()
		if s != nil {
			s.Close()
		}
		return l.reply(statusOK, nil)
	}
	return fmt.Errorf("there is no operation %d", op)
}

// described is a loaded model.
type described struct {
	Inputs, Outputs []tensor.Spec
	Metadata        map[string]string
	Labels          []string
	Bytes           int64
}

// load reads a file into memory outside the heap, so that the memory is free right after the load.
func (c *child) load(l *childLane, id uint64, n int) error {
	file, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("make room for a file of %d bytes: %w", n, err)
	}
	defer func() { _ = unix.Munmap(file) }()
	if err := readFull(l.conn, file[:n]); err != nil {
		return err
	}
	s, err := c.engine.Load(file[:n])
	if err != nil {
		return l.reply(statusFailed, []byte(err.Error()))
	}
	c.mu.Lock()
	c.sessions[id] = s
	c.mu.Unlock()
	return l.describe(described{s.Inputs(), s.Outputs(), s.Metadata(), s.Labels(), s.Bytes()})
}

func (c *child) run(l *childLane, id uint64, n int) error {
	c.mu.Lock()
	s := c.sessions[id]
	c.mu.Unlock()
	if s == nil {
		return fmt.Errorf("there is no session %d", id)
	}
	l.in, l.out = sized(l.in, len(s.Inputs())), sized(l.out, len(s.Outputs()))
	err := (&reader{from: l.memory[:n]}).tensors(l.in)
	if err == nil {
		err = attempt(s, l.in, l.out)
	}
	w := writer{to: l.memory}
	if err == nil {
		err = w.tensors(l.out)
	}
	for i := range l.out { // a large answer would stay in memory
		if t := &l.out[i]; cap(t.Floats)+cap(t.Doubles)+cap(t.Ints) > keptValues {
			*t = tensor.Tensor{}
		}
	}
	if err != nil {
		return l.reply(statusFailed, []byte(err.Error()))
	}
	return l.send(statusOK, w.at)
}

// keptValues is the number of values that an output may keep memory for.
const keptValues = 1 << 18

// attempt runs a session and turns a panic into an error.
func attempt(s Session, in, out []tensor.Tensor) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the engine failed: %v\n%s", r, debug.Stack())
		}
	}()
	return s.Run(in, out)
}

func sized(t []tensor.Tensor, n int) []tensor.Tensor {
	for len(t) < n {
		t = append(t[:cap(t)], tensor.Tensor{})
	}
	return t[:n]
}

func (l *childLane) next() (op int, id uint64, n int, err error) {
	b := l.request[:]
	if err := readFull(l.conn, b); err != nil {
		return 0, 0, 0, err
	}
	return int(binary.NativeEndian.Uint64(b)), binary.NativeEndian.Uint64(b[word:]), int(binary.NativeEndian.Uint64(b[2*word:])), nil
}

// describe answers with JSON, which follows the answer.
func (l *childLane) describe(what any) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return l.reply(statusOK, text)
}

// reply answers with bytes that follow the answer.
func (l *childLane) reply(status int, text []byte) error {
	if err := l.send(status, len(text)); err != nil || len(text) == 0 {
		return err
	}
	return writeFull(l.conn, text)
}

func (l *childLane) send(status, n int) error {
	binary.NativeEndian.PutUint64(l.answer[:], uint64(status))
	binary.NativeEndian.PutUint64(l.answer[word:], uint64(n))
	return writeFull(l.conn, l.answer[:])
}

// readFull reads with blocking calls, which answer sooner than Go's poller.
func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Read(fd, b)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		default:
			b = b[n:]
		}
	}
	return nil
}

func writeFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		default:
			b = b[n:]
		}
	}
	return nil
}

// dataBytes returns the bytes that count against the limit of the process's memory.
func dataBytes() uint64 {
	runtime.GC()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return dataOf(string(text))
}
