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
	Run     time.Duration // time for the run of a request; 20 s
	Batch   time.Duration // time for another run, for which all events of a scorer wait; 5 s
	Load    time.Duration // time for a load, besides a second for each 8 MiB; 30 s
	Room    int64         // bytes of memory for runs, besides the models; 256 MiB
	Logger  *slog.Logger
}

// InTests is a variable of the environment with which a TestMain says that its binary can be the child.
const InTests = "TIDEMILL_TEST_CHILD"

const (
	runWithin   = 20 * time.Second
	batchWithin = 5 * time.Second
	loadWithin  = 30 * time.Second
	loadRate    = 8 << 20 // bytes a second
	runRoom     = 256 << 20
)

// ErrAtFault reports that the child had to be ended, or has crashed, because of this model.
var ErrAtFault = errors.New("the process of ONNX Runtime was lost because of this model")

// ErrAway reports that the child could not be started, was lost because of other models, or is not given
// to this model for a while. Another try may succeed.
var ErrAway = errors.New("the process of ONNX Runtime is away")

// Pool runs models in a child, which it starts at the first load, and again after its end.
type Pool struct {
	o   Options
	log *slog.Logger

	// lone is held for reading during each load and run. After a crash with several of them under
	// way, each is done again alone, with the write lock, so that a second crash names its model. A call
	// that lacked memory is done again alone in a new child.
	lone sync.RWMutex

	mu       sync.Mutex
	child    *process // nil before the first load
	closed   bool
	lastID   uint64
	starts   int       // failed starts in a row
	startAt  time.Time // time before which no start is tried
	startErr error
	faults   map[mark]*fault
	said     bool // the missing protections have been logged
}

// mark is the digest of a file, or of a model's name. Faults are counted by both, so that a model with
// another file each time is refused too.
type mark [sha256.Size]byte

// fault counts how often a file, or the files of a model, have cost the child.
type fault struct {
	times int
	first time.Time
	until time.Time // it is refused until then
	unfit bool      // whether it is refused because it cannot be loaded
	err   error
}

// refusal is the error of a model that is refused for a while because of its runs. It is ErrAway too: the
// other rows of the model may be scored later.
type refusal struct{ error }

// Is makes a refusal ErrAway.
func (r refusal) Is(target error) bool { return target == ErrAway }

// Unwrap returns the fault.
func (r refusal) Unwrap() error { return r.error }

const (
	faultsAllowed = 3                // faults in faultsWithin, before the file and the model are refused
	faultsWithin  = 10 * time.Minute // also the time for which they are refused
	faultsKept    = 1024
)

// Open returns a pool. It starts nothing.
func Open(o Options) *Pool {
	o.Run, o.Batch, o.Load, o.Room = cmp.Or(o.Run, runWithin), cmp.Or(o.Batch, batchWithin), cmp.Or(o.Load, loadWithin), cmp.Or(o.Room, runRoom)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pool{o: o, log: o.Logger, faults: map[mark]*fault{}}
}

// AtOnce is the number of runs that are under way at the same time, and of loads.
func AtOnce() int { return runtime.GOMAXPROCS(0) }

// refused returns the error of a model that has cost the child too often.
func (p *Pool) refused(marks [2]mark, loading bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, by := range marks {
		if f := p.faults[by]; f != nil && time.Now().Before(f.until) {
			err := fmt.Errorf("%w; it is tried again after %s", f.err, f.until.UTC().Format(time.RFC3339))
			if f.unfit && loading {
				return err
			}
			return refusal{err}
		}
	}
	return nil
}

// blame records a fault. A file is refused at once if it cannot be loaded, and after several faults
// otherwise: one row may be the reason.
func (p *Pool) blame(marks [2]mark, loading bool, reason string) error {
	err := fmt.Errorf("%w: %s", ErrAtFault, reason)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, by := range marks {
		f := p.faultOf(by, now)
		f.times, f.err = f.times+1, err
		f.unfit = loading && i == 0
		if f.unfit || f.times >= faultsAllowed {
			f.until = now.Add(faultsWithin)
		}
	}
	p.log.Error("models: ONNX Runtime was lost because of a model; it is started again", "reason", reason)
	return err
}

// faultOf returns the count of a mark. The caller holds the lock.
func (p *Pool) faultOf(by mark, now time.Time) *fault {
	f := p.faults[by]
	if f != nil && now.Sub(f.first) <= faultsWithin {
		return f
	}
	if len(p.faults) >= faultsKept {
		for old, g := range p.faults {
			if now.Sub(g.first) > faultsWithin || len(p.faults) >= faultsKept {
				delete(p.faults, old)
			}
		}
	}
	f = &fault{first: now}
	p.faults[by] = f
	return f
}
