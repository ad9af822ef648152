package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Program is a model in the child. It is safe for concurrent use until it is closed.
type Program struct {
	pool   *Pool
	marks  [2]mark                // digests of the file and of the model's name
	source func() ([]byte, error) // returns the file again, for another child
	told   description

	again   sync.Mutex // held while the file is loaded into another child
	mu      sync.Mutex
	child   *process // child that has the session
	session uint64

	// most is the size of a batch from which a failed allocation is the model's own; 0 while none has
	// failed in a new child.
	most atomic.Int64
}

// description is what the child says about a model.
type description struct {
	Inputs, Outputs []tensor.Spec
	Metadata        map[string]string
	Labels          []string
	Bytes           int64
}

// Inputs returns the specs of Run's inputs, in their order.
func (p *Program) Inputs() []tensor.Spec { return p.told.Inputs }

// Outputs returns the specs of Run's outputs.
func (p *Program) Outputs() []tensor.Spec { return p.told.Outputs }

// Metadata returns the file's metadata.
func (p *Program) Metadata() map[string]string { return p.told.Metadata }

// Labels returns the names of the classes in the order of the scores; see onnx.Model.ClassNames.
func (p *Program) Labels() []string { return p.told.Labels }

// Bytes returns an estimate of the memory that the session holds in the child.
func (p *Program) Bytes() int64 { return p.told.Bytes }

// Run computes the outputs; see native.Program.
func (p *Program) Run(in, out []tensor.Tensor) error { return p.RunWithin(nil, in, out) }

// Load loads a file of the model with this name. The source returns the same file again, if another
// child needs it. The error is ErrAtFault if the file costs the child.
func (p *Pool) Load(model string, file []byte, source func() ([]byte, error)) (*Program, error) {
	m := &Program{pool: p, marks: [...]mark{sha256.Sum256(file), sha256.Sum256([]byte("model " + model))}, source: source}
	return m, p.do(m, true, func(c *process) error { return m.load(c, file) })
}

// Close ends the child. No load or run may be in progress.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.endChild()
}

// tries is how often something is done again after the child was lost because of another model.
const tries = 5

// killsAllowed is how often a child may be killed from outside while a call is alone in it. More often is
// no accident: the call may take the memory of the machine.
const killsAllowed = 2

// do does something in the child, and again if the child is lost because of another call, or if its
// memory was not enough.
func (p *Pool) do(m *Program, loading bool, what func(*process) error) error {
	with, killed := others, 0
	for range tries {
		if err := p.refused(m.marks, loading); err != nil { // also if another call was at fault meanwhile
			return err
		}
		lost, err := p.doOnce(with, what)
		short, isShort := errors.AsType[shortError](err)
		switch {
		case isShort && with != fresh && !m.isTooMuch(short):
			with = fresh // other models may have the memory
		case isShort && short.batch == 0:
			return p.blame(m.marks, loading, err.Error())
		case isShort:
			m.most.Store(max(1, short.batch/2))
			return err
		case !errors.Is(err, errLost) || lost == nil:
			return err
		case with != others && lost.killed && killed < killsAllowed:
			killed++
		case errors.Is(err, errOwnFault), lost.culprit() == nil && with != others:
			return p.blame(m.marks, loading, lost.words())
		case lost.culprit() == nil && with == others:
			with = alone // any of the calls that were under way may be the reason
		}
	}
	return fmt.Errorf("%w %d times because of other calls; the next try may succeed", errLost, tries)
}

// company names the other users of a child during a call.
type company int

const (
	others company = iota
	alone          // other models, but no other call
	fresh          // nothing: the child is new
)

// shortError is the error of a model for which the child's memory was not enough.
type shortError struct {
	text  string
	batch int64 // bytes of the batch; 0 at a load
}

// Error returns the text of ONNX Runtime.
func (s shortError) Error() string { return s.text }

// errorOf makes an error of the child's text about a batch of some bytes, or about a load. After a failed
// allocation the text has the name of C++'s exception.
func errorOf(text []byte, batch int) error {
	if strings.Contains(string(text), "std::bad_alloc") {
		return shortError{string(text), int64(batch)}
	}
	return errors.New(string(text))
}

// isTooMuch reports whether a batch is known to be too large for a new child. Without that, a
// model that takes much would cost a child with each batch.
func (m *Program) isTooMuch(s shortError) bool {
	most := m.most.Load()
	return most > 0 && s.batch >= most
}

func (p *Pool) doOnce(with company, what func(*process) error) (*process, error) {
	if with == others {
		p.lone.RLock()
		defer p.lone.RUnlock()
	} else {
		p.lone.Lock()
		defer p.lone.Unlock()
	}
	if with == fresh {
		p.endChild()
	}
	c, err := p.current()
	if err != nil {
		return nil, err
	}
	if err = what(c); errors.Is(err, errLost) {
		<-c.gone // nothing else may meet the dying child, and be taken for the reason of its end
	}
	return c, err
}

// endChild ends the child, in which no call is under way.
func (p *Pool) endChild() {
	p.mu.Lock()
	c := p.child
	p.mu.Unlock()
	if c != nil {
		c.stop(context.Background())
	}
}

// load loads the session into a child.
func (m *Program) load(c *process, file []byte) error {
	l, err := c.take(c.loads)
	if err != nil {
		return err
	}
	defer func() { c.loads <- l }()
	size := int64(len(file))
	c.add(size)
	within := m.pool.o.Load + time.Duration(len(file)/loadRate)*time.Second
	late := time.AfterFunc(within, func() { c.kill(l, fmt.Sprintf("it was not loaded within %s", within)) })
	defer late.Stop()
	id := m.pool.nextID()
	status, text, err := l.call(opLoad, id, len(file), file)
	if err != nil {
		return c.lost(l, err)
	}
	if status != statusOK {
		c.add(-size)
		return errorOf(text, 0)
	}
	var told description
	if err := json.Unmarshal(text, &told); err != nil {
		return fmt.Errorf("read what ONNX Runtime's process says of the model: %w", err)
	}
	if told.Bytes < 0 || told.Bytes > mostBytes(size) {
		return c.lost(l, errDamaged) // it would lift the limit of the child's memory
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child == nil {
		m.told = told
	}
	m.told.Bytes = told.Bytes
	c.add(told.Bytes - size)
	m.child, m.session = c, id
	return nil
}

// mostBytes returns the most memory that a child may say a session of a file takes.
func mostBytes(file int64) int64 { return 16*file + 1<<20 }

func (p *Pool) nextID() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	return p.lastID
}

// RunWithin is Run for a request: with a limit for the memory of the outputs, and with more time, because
// only that request waits.
func (m *Program) RunWithin(b tensor.Budget, in, out []tensor.Tensor) error {
	if len(in) != len(m.told.Inputs) || len(out) != len(m.told.Outputs) {
		return fmt.Errorf("the model takes %d tensors and answers %d, not %d and %d", len(m.told.Inputs), len(m.told.Outputs), len(in), len(out))
	}
	return m.pool.do(m, false, func(c *process) error { return m.run(c, b, in, out) })
}

func (m *Program) run(c *process, b tensor.Budget, in, out []tensor.Tensor) error {
	id, err := m.sessionIn(c)
	if err != nil {
		return err
	}
	l, err := c.take(c.runs)
	if err != nil {
		return err
	}
	defer func() {
		l.trim()
		c.runs <- l
	}()
	l.writer.to = l.memory
	err = l.writer.tensors(in)
	l.used = l.writer.at
	if err != nil {
		return err
	}
	within := m.pool.o.Batch
	if b != nil {
		within = m.pool.o.Run
	}
	late := time.AfterFunc(within, func() { c.kill(l, fmt.Sprintf("it did not answer within %s", within)) })
	defer late.Stop()
	status, size, err := l.ask(opRun, id, l.writer.at, nil)
	if err != nil {
		return c.lost(l, err)
	}
	l.used = max(l.used, size)
	if status != statusOK {
		return l.failure(c, size, l.writer.at)
	}
	l.reader = reader{from: l.memory[:size], copied: true, budget: b}
	return l.reader.tensors(out)
}

// failure reads the text of an error about a batch of some bytes.
func (l *lane) failure(c *process, size, batch int) error {
	text := make([]byte, min(size, mostText))
	if err := readFull(l.conn, text); err != nil {
		return c.lost(l, err)
	}
	return errorOf(text, batch)
}

// sessionIn returns the session in a child, and loads the file again into a new child.
func (m *Program) sessionIn(c *process) (uint64, error) {
	if id, ok := m.idIn(c); ok {
		return id, nil
	}
	m.again.Lock()
	defer m.again.Unlock()
	if id, ok := m.idIn(c); ok { // another run has loaded it meanwhile
		return id, nil
	}
	file, err := m.source()
	if err != nil {
		return 0, fmt.Errorf("read the model again after ONNX Runtime's process was started again: %w", err)
	}
	if err := m.load(c, file); err != nil {
		return 0, err
	}
	id, _ := m.idIn(c)
	return id, nil
}

// idIn returns the session, if it is in this child.
func (m *Program) idIn(c *process) (uint64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.session, m.child == c
}

// lost ends a child whose connection is broken or whose answer is damaged. The error says whether the
// time of this lane's call was over.
func (c *process) lost(l *lane, err error) error {
	reason := "" // the child's end has a reason
	if errors.Is(err, errDamaged) {
		reason = "its answer is damaged"
	}
	c.kill(nil, reason)
	if c.culprit() == l {
		return errOwnFault
	}
	return errLost
}

// Close ends the session. No Run may be in progress.
func (m *Program) Close() {
	m.mu.Lock()
	c, id := m.child, m.session
	m.child = nil
	m.mu.Unlock()
	if c == nil || c.ended() {
		return
	}
	l, err := c.take(c.loads)
	if err != nil {
		return
	}
	defer func() { c.loads <- l }()
	late := time.AfterFunc(m.pool.o.Run, func() { c.kill(l, "it could not be closed") })
	defer late.Stop()
	if _, _, err := l.call(opClose, id, 0, nil); err == nil {
		c.add(-m.told.Bytes)
	}
}
