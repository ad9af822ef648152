package sandbox

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

// Options configure a Pool. A zero field means the default.
type Options struct {
	Library string        // path of ONNX Runtime; ort.Open searches for it if this is empty
	Command []string      // command of the child; this program with Argument
	Run     time.Duration // time for one run; 20 s
	Load    time.Duration // time for a load, besides a second for each 8 MiB; 30 s
	Room    int64         // bytes of memory for runs, besides the models; 256 MiB
	Logger  *slog.Logger
}

// InTests is a variable of the environment with which a TestMain says that its binary can be the child.
const InTests = "TIDEMILL_TEST_CHILD"

const (
	runWithin  = 20 * time.Second
	loadWithin = 30 * time.Second
	loadRate   = 8 << 20 // bytes a second
	runRoom    = 256 << 20
)

// ErrAtFault reports that the child had to be ended, or has crashed, because of this model.
var ErrAtFault = errors.New("the process of ONNX Runtime was lost because of this model")

// ErrAway reports that the child could not be started, or was lost because of other models. Another try
// may succeed.
var ErrAway = errors.New("the process of ONNX Runtime is away")

// Pool runs models in a child, which it starts at the first load, and again after its end.
type Pool struct {
	o   Options
	log *slog.Logger

	// lone is held for reading during each load and run. After a crash with several of them under
	// way, each is done again alone, with the write lock, so that a second crash names its model.
	lone sync.RWMutex

	mu       sync.Mutex
	child    *process // nil before the first load
	closed   bool
	lastID   uint64
	starts   int       // failed starts in a row
	startAt  time.Time // time before which no start is tried
	startErr error
	faults   map[[sha256.Size]byte]*fault
	said     bool // the missing protections have been logged
}

// fault counts how often a file has cost the child.
type fault struct {
	times int
	first time.Time
	until time.Time // the file is refused until then
	err   error
}

const (
	faultsAllowed = 3                // faults of a run in faultsWithin, before the file is refused
	faultsWithin  = 10 * time.Minute // also the time for which a file is refused
	faultsKept    = 1024
)

// Open returns a pool. It starts nothing.
func Open(o Options) *Pool {
	o.Run, o.Load, o.Room = cmp.Or(o.Run, runWithin), cmp.Or(o.Load, loadWithin), cmp.Or(o.Room, runRoom)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pool{o: o, log: o.Logger, faults: map[[sha256.Size]byte]*fault{}}
}

// AtOnce is the number of runs that are under way at the same time, and of loads.
func AtOnce() int { return runtime.GOMAXPROCS(0) }

// refused returns the error of a file that has cost the child too often.
func (p *Pool) refused(file [sha256.Size]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.faults[file]; f != nil && time.Now().Before(f.until) {
		return fmt.Errorf("%w; it is tried again after %s", f.err, f.until.UTC().Format(time.RFC3339))
	}
	return nil
}

// blame records a fault of a file. The file is refused at once if it cannot be loaded, and after
// several faults otherwise: the fault may lie in one row.
func (p *Pool) blame(file [sha256.Size]byte, loading bool, reason string) error {
	err := fmt.Errorf("%w: %s", ErrAtFault, reason)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.faults[file]
	if f == nil || now.Sub(f.first) > faultsWithin {
		if len(p.faults) >= faultsKept {
			for old, g := range p.faults {
				if now.Sub(g.first) > faultsWithin || len(p.faults) >= faultsKept {
					delete(p.faults, old)
				}
			}
		}
		f = &fault{first: now}
		p.faults[file] = f
	}
	f.times, f.err = f.times+1, err
	if loading || f.times >= faultsAllowed {
		f.until = now.Add(faultsWithin)
	}
	p.log.Error("models: ONNX Runtime was lost because of a model; it is started again", "reason", reason)
	return err
}
