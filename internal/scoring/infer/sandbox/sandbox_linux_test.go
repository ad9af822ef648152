package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// The test binary is the child too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == Argument {
		if err := Serve(os.Args[2], toyEngine{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv(InTests, "yes")
	os.Exit(m.Run())
}

// spins counts the turns of endless loops, so that they have something to do.
var spins atomic.Int64

// loaded is the number of models that this process has loaded.
var loaded atomic.Int64

// hanging is the number of rows that hang.
var hanging atomic.Int64

// toyEngine loads models. A file, up to a "#", names what its model does with each batch.
type toyEngine struct{}

func (toyEngine) Open() (version, path string, err error) { return "1", "toy", nil }

func (toyEngine) Load(file []byte) (Session, error) {
	switch string(file) {
	case "hang at load":
		for {
			spins.Add(1)
		}
	case "crash at load":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		*(*int)(nil) = 1 //lint:ignore SA5011 a crash is wanted
	case "short at load":
		return nil, errShort
	case "refuse":
		return nil, errors.New("the file is no model")
	}
	loaded.Add(1)
	does, _, _ := strings.Cut(string(file), "#")
	return &toy{does}, nil
}

// errShort is what ONNX Runtime says if an allocation fails.
var errShort = errors.New("running the node Expand: std::bad_alloc")

type toy struct{ does string }

func (toy) Inputs() []tensor.Spec {
	return []tensor.Spec{{Name: "x", Type: tensor.Float, Shape: []int{-1, 1}}}
}
func (toy) Outputs() []tensor.Spec {
	return []tensor.Spec{{Name: "y", Type: tensor.Float, Shape: []int{-1, 1}}}
}
func (toy) Metadata() map[string]string { return map[string]string{"a": "b"} }
func (toy) Labels() []string            { return []string{"l"} }
func (toy) Close()                      {}

// Bytes is wrong in models that are named after it.
func (t toy) Bytes() int64 {
	switch t.does {
	case "says -1":
		return -1
	case "says too much":
		return 1 << 40
	}
	return 1000
}

// Run adds one to each number. A negative number makes the model do what its file says, but at -2 it
// only waits while another row hangs.
func (t toy) Run(in, out []tensor.Tensor) error {
	o := &out[0]
	o.Type, o.Shape, o.Floats = tensor.Float, append(o.Shape[:0], in[0].Shape...), o.Floats[:0]
	bad := false
	for _, v := range in[0].Floats {
		o.Floats = append(o.Floats, v+1)
		bad = bad || v < 0
	}
	if !bad {
		return nil
	}
	for in[0].Floats[0] == -2 {
		if spins.Add(1); hanging.Load() == 0 {
			return nil
		}
	}
	switch t.does {
	case "hang":
		hanging.Add(1)
		for {
			spins.Add(1)
		}
	case "crash":
		unix.Exit(42)
	case "short with others":
		if loaded.Load() > 1 {
			return errShort
		}
	case "short":
		return errShort
	case "eat":
		var all [][]byte
		for range 2 << 10 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
		runtime.KeepAlive(all)
	case "look":
		return errors.New(look(int(-in[0].Floats[0])))
	case "panic":
		panic("a bug")
	}
	return nil
}

// look lists the rights that the child has.
func look(parent int) string {
	var found []string
	for _, v := range os.Environ() {
		found = append(found, "variable "+v)
	}
	for fd := range 64 {
		var s unix.Stat_t
		if unix.Fstat(fd, &s) == nil && s.Mode&unix.S_IFMT != 0 { // the Go runtime's own files have no kind
			found = append(found, fmt.Sprint("file ", fd))
		}
	}
	if f, err := os.Open("/etc/passwd"); err == nil {
		found = append(found, "opened "+f.Name())
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
		found = append(found, "a socket")
	}
	if err := syscall.Exec("/bin/true", []string{"true"}, nil); err == nil {
		found = append(found, "a program")
	}
	if err := syscall.Kill(parent, 0); err == nil {
		found = append(found, "a signal to the parent")
	}
	if _, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{}); err == nil {
		found = append(found, "a process")
	}
	for name, number := range wanted {
		if _, _, err := unix.Syscall6(number, 0, 0, 0, 0, 0, 0); err != unix.EPERM && err != unix.ENOSYS {
			found = append(found, fmt.Sprintf("the call %s (%v)", name, err))
		}
	}
	return strings.Join(found, ", ")
}

// wanted are system calls with which a child could harm others. Without arguments the kernel answers
// another error than the filter.
var wanted = map[string]uintptr{
	"rename": unix.SYS_RENAMEAT, "rename 2": unix.SYS_RENAMEAT2, "unlink": unix.SYS_UNLINKAT, "link": unix.SYS_LINKAT, "chmod": unix.SYS_FCHMODAT, "chmod 2": unix.SYS_FCHMODAT2,
	"chmod of a file": unix.SYS_FCHMOD, "setxattr": unix.SYS_SETXATTR, "lsetxattr": unix.SYS_LSETXATTR, "fsetxattr": unix.SYS_FSETXATTR, "setxattrat": unix.SYS_SETXATTRAT,
	"removexattr": unix.SYS_REMOVEXATTR, "utimensat": unix.SYS_UTIMENSAT, "readlink": unix.SYS_READLINKAT, "stat": unix.SYS_STATX, "fcntl": unix.SYS_FCNTL, "ioctl": unix.SYS_IOCTL,
	"a signal by descriptor": unix.SYS_PIDFD_SEND_SIGNAL, "open_tree": unix.SYS_OPEN_TREE, "mq_open": unix.SYS_MQ_OPEN, "semget": unix.SYS_SEMGET, "shmget": unix.SYS_SHMGET,
	"sendmsg": unix.SYS_SENDMSG, "recvmsg": unix.SYS_RECVMSG, "io_uring": unix.SYS_IO_URING_SETUP, "ptrace": unix.SYS_PTRACE, "prlimit": unix.SYS_PRLIMIT64,
	"affinity": unix.SYS_SCHED_SETAFFINITY, "priority": unix.SYS_SETPRIORITY, "clone3": unix.SYS_CLONE3, "bpf": unix.SYS_BPF,
}

func open(t testing.TB, o Options) *Pool {
	p := Open(o)
	t.Cleanup(p.Close)
	return p
}

func load(t testing.TB, p *Pool, file string) *Program {
	t.Helper()
	m, err := p.Load(file, []byte(file), func() ([]byte, error) { return []byte(file), nil })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ask(m *Program, v float32) (float32, error) { return askWithin(nil, m, v) }

// endless is a budget without an end, as a request has one.
type endless struct{}

func (endless) Take(int64) error { return nil }

func request(m *Program, v float32) (float32, error) { return askWithin(endless{}, m, v) }

func askWithin(b tensor.Budget, m *Program, v float32) (float32, error) {
	out := make([]tensor.Tensor, 1)
	err := m.RunWithin(b, []tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 1}, Floats: []float32{v}}}, out)
	if err != nil {
		return 0, err
	}
	return out[0].Floats[0], nil
}

func mustAnswer(t *testing.T, m *Program) {
	t.Helper()
	if y, err := ask(m, 2); err != nil || y != 3 {
		t.Fatal(y, err)
	}
}

// The attack: models whose load never ends took all places of the loader.
func TestALoadThatHangsEndsTheChild(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Load: time.Second})
	other := load(t, p, "well")
	var all sync.WaitGroup
	for i := range 2 * AtOnce() {
		all.Go(func() {
			m, err := p.Load("m", []byte("hang at load"), nil)
			if !errors.Is(err, ErrAtFault) && !errors.Is(err, errLost) {
				t.Errorf("load %d: %v, %v", i, m, err)
			}
		})
	}
	all.Wait()
	mustAnswer(t, other)
	_, err := p.Load("m", []byte("hang at load"), nil)
	if !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "not loaded within 1s") {
		t.Errorf("the file is loaded again: %v", err)
	}
}

func TestARunThatHangsEndsTheChild(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Batch: 200 * time.Millisecond, Run: time.Hour})
	bad, other := load(t, p, "hang"), load(t, p, "well")
	mustAnswer(t, bad)
	for range faultsAllowed {
		if _, err := ask(bad, -1); !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "did not answer within 200ms") {
			t.Fatal(err)
		}
		mustAnswer(t, other)
	}
	if _, err := ask(bad, 1); !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "tried again after") {
		t.Errorf("after %d faults the model is still asked: %v", faultsAllowed, err)
	}
	mustAnswer(t, other)
}

// Only its caller waits for a request, so a request has more time.
func TestARequestHasItsOwnTime(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Batch: time.Hour, Run: 200 * time.Millisecond})
	_, err := request(load(t, p, "hang"), -1)
	if !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "did not answer within 200ms") {
		t.Error(err)
	}
}

// The attack: a model whose file was another one each time was never refused.
func TestFaultsAreCountedByName(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	loadAs := func(name, file string) *Program {
		m, err := p.Load(name, []byte(file), func() ([]byte, error) { return []byte(file), nil })
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for n := range faultsAllowed {
		m := loadAs("bad", fmt.Sprint("crash#", n))
		if _, err := ask(m, -1); !errors.Is(err, ErrAtFault) {
			t.Fatal(err)
		}
	}
	if _, err := p.Load("bad", []byte("well"), nil); !errors.Is(err, ErrAway) || !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "tried again after") {
		t.Errorf("after %d faults in other files the model is still loaded: %v", faultsAllowed, err)
	}
	mustAnswer(t, loadAs("good", "crash#9"))
}

// Only the row that hangs is at fault, and not the rows of the same model that are asked at that moment.
func TestALossIsOneFault(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Batch: 200 * time.Millisecond})
	m := load(t, p, "hang")
	done := make(chan error)
	go func() {
		_, err := ask(m, -1)
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if !errors.Is(err, ErrAtFault) {
				t.Error(err)
			}
			if f := p.faults[m.marks[0]]; f.times != 1 {
				t.Errorf("%d faults", f.times)
			}
			return
		default:
		}
		if _, err := request(m, -2); err != nil {
			t.Errorf("another row: %v", err)
		}
	}
}

// The kernel or a person kills the child while a model is alone in it. Only the third time counts.
func TestAKillFromOutsideIsNoFaultAtOnce(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Batch: time.Hour})
	m := load(t, p, "hang")
	done := make(chan error, 1)
	go func() {
		_, err := ask(m, -1)
		done <- err
	}()
	for p.lone.TryLock() { // the call is not under way yet
		p.lone.Unlock()
		runtime.Gosched()
	}
	var last *process
	for killed := 0; killed < 2+killsAllowed; {
		select {
		case err := <-done:
			t.Fatalf("after %d kills: %v", killed, err)
		default:
		}
		p.mu.Lock()
		c := p.child
		p.mu.Unlock()
		if c == last {
			runtime.Gosched()
			continue
		}
		_ = c.cmd.Process.Kill()
		last, killed = c, killed+1
	}
	if err := <-done; !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("after too many kills: %v", err)
	}
}

// Models that run at the moment of a crash are asked again, and only the one that crashes is at fault.
func TestOnlyTheModelThatCrashesIsAtFault(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	bad, other := load(t, p, "crash"), load(t, p, "well")
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if y, err := ask(other, 2); err != nil || y != 3 {
					t.Error(y, err)
					return
				}
			}
		})
	}
	if _, err := ask(bad, -1); !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "exit status 42") {
		t.Error(err)
	}
	close(stop)
	all.Wait()
	if _, err := p.Load("m", []byte("crash at load"), nil); !errors.Is(err, ErrAtFault) {
		t.Error(err)
	}
	mustAnswer(t, other)
}

func TestTheChildHasLimitedMemory(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Room: 64 << 20})
	bad, other := load(t, p, "eat"), load(t, p, "well")
	if _, err := ask(bad, -1); !errors.Is(err, ErrAtFault) {
		t.Error(err)
	}
	mustAnswer(t, other)
}

// The attack: a model held the child's memory, and another one that could get none was condemned.
func TestALackOfMemoryMayBeOfOthers(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	m, other := load(t, p, "short with others"), load(t, p, "well")
	mustAnswer(t, other)
	if y, err := ask(m, -1); err != nil || y != 0 {
		t.Errorf("a model that has the memory of a new child: %v, %v", y, err)
	}
	mustAnswer(t, other)
	if _, err := p.Load("m", []byte("short at load"), nil); !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "bad_alloc") {
		t.Errorf("a model that cannot be loaded in a new child: %v", err)
	}
}

// A model that takes too much costs no child with each batch.
func TestALackOfMemoryOfItsOwn(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	m, other := load(t, p, "short"), load(t, p, "well")
	mustAnswer(t, other)
	for range 2 * faultsAllowed {
		if _, err := ask(m, -1); err == nil || err.Error() != errShort.Error() {
			t.Error(err)
		}
		mustAnswer(t, other)
	}
	if n := p.lastID; n != 4 {
		t.Errorf("two models were loaded %d times, and one new child is enough", n)
	}
}

func TestTheChildHasNoRights(t *testing.T) {
	t.Setenv("TIDEMILL_TEST_SECRET", "s")
	leak, err := syscall.Dup(0) // a file that a child would inherit
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(leak)
	if err := syscall.Dup3(leak, 60, 0); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(60)
	p := open(t, Options{})
	m := load(t, p, "look")
	_, err = ask(m, float32(-os.Getpid())) // less than 2^24, which a float32 has exactly
	if err == nil {
		t.Fatal("the child says nothing")
	}
	for _, found := range strings.Split(err.Error(), ", ") {
		var fd int
		if n, _ := fmt.Sscanf(found, "file %d", &fd); n == 1 && fd < firstFile+4*AtOnce() {
			continue
		}
		if strings.HasPrefix(found, "variable LANG=") || strings.HasPrefix(found, "variable LC_ALL=") || strings.HasPrefix(found, "variable LD_LIBRARY_PATH=") || strings.HasPrefix(found, "variable TIDEMILL_ONNXRUNTIME=") {
			continue
		}
		t.Errorf("the child has %s", found)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.child.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the child's status has no %q", want)
		}
	}
}

// The attack: a child that says that a session takes less than nothing, or terabytes, lifts its own limit.
func TestTheChildCannotChooseItsLimit(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	for _, file := range []string{"says -1", "says too much"} {
		if _, err := p.Load("m", []byte(file), nil); !errors.Is(err, ErrAtFault) || !strings.Contains(err.Error(), "its answer is damaged") {
			t.Errorf("it %s: %v", file, err)
		}
	}
}

func TestErrorsOfModelsAreKept(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	if _, err := p.Load("m", []byte("refuse"), nil); err == nil || err.Error() != "the file is no model" {
		t.Error(err)
	}
	if _, err := ask(load(t, p, "panic"), -1); err == nil || !strings.Contains(err.Error(), "a bug") || errors.Is(err, ErrAtFault) {
		t.Error(err)
	}
}

func TestAChildThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Command: []string{"/nonexistent"}})
	if _, err := p.Load("m", []byte("well"), nil); err == nil || !strings.Contains(err.Error(), "is away: start it") || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	p = open(t, Options{Command: []string{"/bin/sh", "-c", "echo no library >&2; exit 3", "sh"}})
	if _, err := p.Load("m", []byte("well"), nil); err == nil || !strings.Contains(err.Error(), "no library") {
		t.Error(err)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	p := open(b, Options{})
	m := load(b, p, "well")
	for _, rows := range []int{1, 256, 256 * 512} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			in := []tensor.Tensor{{Type: tensor.Float, Shape: []int{rows, 1}, Floats: make([]float32, rows)}}
			out := make([]tensor.Tensor, 1)
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Run(in, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
