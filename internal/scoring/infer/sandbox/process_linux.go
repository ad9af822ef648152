package sandbox

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/scoring/infer/ort"
)

// process is a child.
type process struct {
	cmd   *exec.Cmd
	runs  chan *lane // free lanes for runs
	loads chan *lane // free lanes for loads, so that a load that hangs delays no run
	gone  chan struct{}
	tail  *tail // last words of the child

	bytes atomic.Int64 // bytes of the loaded models
	limit func(models int64) error

	mu     sync.Mutex
	guilty *lane  // lane of the call whose time was over
	reason string // why the child has ended
	killed bool   // whether another process, or the kernel, has killed the child; read it after gone is closed
}

// lane is one of the connections to the child.
type lane struct {
	conn    int
	memory  []byte
	used    int // bytes of the memory that may be in use
	request [requestBytes]byte
	answer  [answerBytes]byte
	writer  writer
	reader  reader
}

// errLost means that the child has ended before it has answered.
var errLost = fmt.Errorf("%w: it has ended", ErrAway)

// errOwnFault is errLost for the call whose time was over.
var errOwnFault = fmt.Errorf("%w after its time was over", errLost)

// errStopped means that the pool was closed.
var errStopped = fmt.Errorf("%w: it has been stopped", ErrAway)

// current returns the running child, and starts one if there is none. After failed starts it waits
// longer and longer before the next one, and meanwhile returns the last start's error.
func (p *Pool) current() (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errStopped
	case p.child != nil && !p.child.ended():
		return p.child, nil
	case time.Now().Before(p.startAt):
		return nil, p.startErr
	}
	c, weaker, err := p.start()
	if err != nil {
		if !errors.Is(err, ort.ErrMissing) { // the library may be installed at any time
			err = fmt.Errorf("%w: start it: %w", ErrAway, err)
			p.starts++
			p.startAt, p.startErr = time.Now().Add(retry.Backoff{First: 100 * time.Millisecond, Cap: 10 * time.Second}.After(p.starts)), err
		}
		return nil, err
	}
	p.child, p.starts = c, 0
	if len(weaker) > 0 && !p.said {
		p.said = true
		p.log.Warn("models: the process of ONNX Runtime lacks protections that this system does not have", "reason", strings.Join(weaker, "; "))
	}
	return c, nil
}

// start starts a child. The child gets no variable of the environment that is not named here.
func (p *Pool) start() (_ *process, weaker []string, err error) {
	n := 2 * AtOnce()
	command := p.o.Command
	if command == nil {
		if strings.HasSuffix(os.Args[0], ".test") && os.Getenv(InTests) == "" {
			return nil, nil, fmt.Errorf("a test binary would run its tests again: its TestMain must call Child and set %s", InTests)
		}
		command = []string{"/proc/self/exe", Argument}
	}
	c := &process{runs: make(chan *lane, n), loads: make(chan *lane, n), gone: make(chan struct{}), tail: &tail{}}
	c.cmd = exec.Command(command[0], append(command[1:len(command):len(command)], strconv.Itoa(n))...)
	c.cmd.Env, c.cmd.Dir, c.cmd.Stderr = childEnv(p.o.Library), "/", c.tail
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which still answers what is under way
	lanes, err := c.openLanes(n)
	defer func() {
		for _, f := range c.cmd.ExtraFiles {
			_ = f.Close()
		}
		if err != nil {
			closeLanes(lanes)
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, nil, err
	}
	go c.wait(lanes)
	told, err := c.begin(lanes[0])
	for i, l := range lanes {
		if i < AtOnce() {
			c.runs <- l
		} else {
			c.loads <- l
		}
	}
	if err != nil {
		c.kill(nil, "it did not start")
		lanes = nil // wait closes them
		return nil, nil, err
	}
	c.limit = func(models int64) error { return c.setLimit(told.Data, uint64(p.o.Room), uint64(models)) }
	if err := c.limit(0); err != nil {
		told.Weaker = append(told.Weaker, fmt.Sprintf("no limit of memory: %v", err))
	}
	p.log.Info("models: ONNX Runtime runs in a child process", "version", told.Version)
	return c, told.Weaker, nil
}

// childEnv returns the child's environment: where libraries are, and the language of texts.
func childEnv(library string) []string {
	env := []string{}
	for _, name := range []string{ort.Variable, "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LOCPATH"} {
		value := os.Getenv(name)
		if name == ort.Variable {
			value = absolute(cmp.Or(library, value))
		}
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// absolute returns the path of a file or folder for a process in another folder. A name without a
// folder is searched for by the system.
func absolute(path string) string {
	info, err := os.Stat(path)
	if path == "" || !strings.ContainsRune(path, filepath.Separator) && (err != nil || !info.IsDir()) {
		return path
	}
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// openLanes makes the connections and the shared memory. The size of the memory is sealed, so that the
// child cannot take memory away from under this process. The second half is for loads, which use no
// shared memory: it counts against no limit of the child.
func (c *process) openLanes(n int) (lanes []*lane, err error) {
	for i := range n {
		size := laneBytes
		if i >= n/2 {
			size = os.Getpagesize()
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return lanes, fmt.Errorf("make a connection: %w", err)
		}
		l := &lane{conn: pair[0]}
		lanes = append(lanes, l)
		c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, os.NewFile(uintptr(pair[1]), "connection"))
		memory, err := unix.MemfdCreate("tidemill", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return lanes, fmt.Errorf("make shared memory: %w", err)
		}
		c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, os.NewFile(uintptr(memory), "memory"))
		if err = unix.Ftruncate(memory, int64(size)); err == nil {
			_, err = unix.FcntlInt(uintptr(memory), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		}
		if err == nil {
			l.memory, err = unix.Mmap(memory, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			return lanes, fmt.Errorf("make shared memory: %w", err)
		}
	}
	return lanes, nil
}

func closeLanes(lanes []*lane) {
	for _, l := range lanes {
		_ = syscall.Close(l.conn)
		if l.memory != nil {
			_ = unix.Munmap(l.memory)
		}
	}
}

// begin makes the child load the library and give up its rights.
func (c *process) begin(l *lane) (told opened, err error) {
	late := time.AfterFunc(loadWithin, func() { c.kill(nil, fmt.Sprintf("it did not start within %s", loadWithin)) })
	defer late.Stop()
	status, text, err := l.call(opOpen, 0, 0, nil)
	switch {
	case err != nil:
		c.kill(nil, "")
		<-c.gone
		return told, errors.New(c.words())
	case status == statusMissing:
		return told, fmt.Errorf("%w%s", ort.ErrMissing, strings.TrimPrefix(string(text), ort.ErrMissing.Error()))
	case status != statusOK:
		return told, errors.New(string(text))
	}
	return told, json.Unmarshal(text, &told)
}

// setLimit bounds the child's memory by what it has at rest, room for runs, and three times the
// models' size, because a load holds a file, its graph and the packed weights.
func (c *process) setLimit(rest, room, models uint64) error {
	limit := unix.Rlimit{Cur: rest + room + 3*models, Max: unix.RLIM_INFINITY}
	var now unix.Rlimit
	if err := unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_DATA, nil, &now); err != nil {
		return err
	}
	limit.Max = now.Max
	limit.Cur = min(limit.Cur, limit.Max)
	return unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_DATA, &limit, nil)
}

// add counts bytes of models, and adapts the limit.
func (c *process) add(bytes int64) {
	_ = c.limit(c.bytes.Add(bytes)) // start has reported a system without limits; else the child has ended
}

// wait waits for the child's end. The lanes are closed after their users have noticed.
func (c *process) wait(lanes []*lane) {
	err := c.cmd.Wait()
	c.mu.Lock()
	if c.reason == "" {
		c.reason = "it ended by itself: " + endOf(err, c.tail.text())
		status, is := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
		c.killed = is && status.Signal() == syscall.SIGKILL
	}
	c.mu.Unlock()
	close(c.gone)
	for _, l := range lanes {
		_ = syscall.Shutdown(l.conn, syscall.SHUT_RDWR)
	}
	for range lanes { // each lane comes back from its user
		select {
		case l := <-c.runs:
			closeLanes([]*lane{l})
		case l := <-c.loads:
			closeLanes([]*lane{l})
		}
	}
}

func endOf(err error, words string) string {
	text := "exit status 0"
	if err != nil {
		text = err.Error()
	}
	if words != "" {
		text += ": " + words
	}
	return text
}

func (c *process) ended() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// kill ends the child because of a call.
func (c *process) kill(because *lane, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == "" {
		c.guilty, c.reason = because, reason
	}
	_ = c.cmd.Process.Kill() // an error means that it has ended
}

// words returns the reason of the child's end.
func (c *process) words() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

func (c *process) culprit() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.guilty
}

// take takes a free lane.
func (c *process) take(from chan *lane) (*lane, error) {
	select {
	case <-c.gone:
		return nil, errLost
	default:
	}
	select {
	case l := <-from:
		return l, nil
	case <-c.gone:
		return nil, errLost
	}
}

// call sends a request, and the bytes of a file after it, and returns the answer with its text.
func (l *lane) call(op int, id uint64, n int, file []byte) (status int, text []byte, err error) {
	status, size, err := l.ask(op, id, n, file)
	if err != nil || size == 0 {
		return status, nil, err
	}
	if size > mostText {
		return 0, nil, errDamaged
	}
	text = make([]byte, size)
	return status, text, readFull(l.conn, text)
}

// mostText is the most bytes of a description or an error.
const mostText = 16 << 20

func (l *lane) ask(op int, id uint64, n int, file []byte) (status, size int, err error) {
	b := l.request[:]
	binary.NativeEndian.PutUint64(b, uint64(op))
	binary.NativeEndian.PutUint64(b[word:], id)
	binary.NativeEndian.PutUint64(b[2*word:], uint64(n))
	if err := sendFull(l.conn, b); err != nil {
		return 0, 0, err
	}
	if err := sendFull(l.conn, file); err != nil {
		return 0, 0, err
	}
	if err := readFull(l.conn, l.answer[:]); err != nil {
		return 0, 0, err
	}
	status, size = int(binary.NativeEndian.Uint64(l.answer[:])), int(binary.NativeEndian.Uint64(l.answer[word:]))
	if size < 0 || size > laneBytes {
		return 0, 0, errDamaged
	}
	return status, size, nil
}

// sendFull writes like writeFull, but a lost child does not send SIGPIPE.
func sendFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			b = b[n:]
		}
	}
	return nil
}

// keptBytes is how much of its shared memory a lane keeps between two batches.
const keptBytes = 4 << 20

// trim returns the memory of a large batch to the system.
func (l *lane) trim() {
	if l.used > keptBytes {
		_ = unix.Madvise(l.memory[keptBytes:], unix.MADV_REMOVE) // without it the memory is used for the next large batch
	}
	l.used = 0
}

// tail keeps the first bytes of the child's last words.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailBytes = 2 << 10

// Write keeps the first bytes.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b[:min(len(b), tailBytes-len(t.kept))]...)
	return len(b), nil
}

// text returns the first lines, on one line.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.FieldsFunc(string(t.kept), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[:min(len(lines), 3)], "; ")
}

// stop ends the child and waits for its end.
func (c *process) stop(ctx context.Context) {
	c.kill(nil, "it was stopped")
	select {
	case <-c.gone:
	case <-ctx.Done():
	}
}
