package infer

import (
	"errors"
	"fmt"
	"runtime/debug"

	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Program is a graph that an engine has loaded. It is safe for concurrent use until it is closed.
type Program interface {
	Inputs() []tensor.Spec
	Outputs() []tensor.Spec
	Metadata() map[string]string
	Labels() []string // names of the classes that the graph itself has; nil if there are none
	Bytes() int64
	Run(in, out []tensor.Tensor) error
	// RunWithin is Run, and takes the memory of its tables from a budget before it makes them. The
	// error wraps the budget's error. A nil budget has no limit.
	RunWithin(b tensor.Budget, in, out []tensor.Tensor) error
	Close()
}

// ErrAway reports that ONNX Runtime's process is away; another try may succeed.
var ErrAway = sandbox.ErrAway

// ErrNoRuntime reports that a model needs ONNX Runtime, and that it is not installed here.
var ErrNoRuntime = ort.ErrMissing

var (
	_ Program = (*native.Program)(nil)
	_ Program = (*sandbox.Program)(nil)
)

// engines makes programs. ONNX Runtime runs in a process of its own, which the first graph that needs
// it starts. If the library was missing, the next such graph searches again, because it may have been
// installed since.
type engines struct{ runtime *sandbox.Pool }

// source is a file and what a load needs besides.
type source struct {
	model  string // name, by which faults are counted
	engine string
	data   []byte
	again  func() ([]byte, error) // returns the file again
	// slow is called before a load that may take long without this process's work, so that the load
	// gives its place to others. Its error ends the load.
	slow func() error
}

// load makes a program from a file and returns the name of its engine. The error is
// ErrUnfit unless the same file may load elsewhere, or later.
func (e *engines) load(s source) (p Program, by string, err error) {
	defer func() {
		if r := recover(); r != nil { // a bug of the engine with one file must not stop the other models
			p, err = nil, fmt.Errorf("%w: the engine failed over the file: %v\n%s", ErrUnfit, r, debug.Stack())
		}
	}()
	switch s.engine {
	case EngineGo:
		p, err := native.Load(s.data)
		switch {
		case errors.Is(err, onnx.ErrUnsupported):
			return nil, "", fmt.Errorf("%w: %w; set the engine to %s or %s", ErrUnfit, err, EngineAuto, EngineONNXRuntime)
		case err != nil:
			return nil, "", fmt.Errorf("%w: %w", ErrUnfit, err)
		}
		return p, EngineGo, nil
	case EngineONNXRuntime:
		return e.loadRuntime(s)
	case EngineAuto:
		return e.loadEither(s)
	}
	return nil, "", fmt.Errorf("%w: there is no engine %q; use %s, %s or %s", ErrUnfit, s.engine, EngineAuto, EngineGo, EngineONNXRuntime)
}

// loadEither prefers the Go engine. If that does not support the graph, the other
// engine's error counts, together with the reason why it was needed.
func (e *engines) loadEither(s source) (Program, string, error) {
	p, why := native.Load(s.data)
	switch {
	case why == nil:
		return p, EngineGo, nil
	case !errors.Is(why, onnx.ErrUnsupported):
		return nil, "", fmt.Errorf("%w: %w", ErrUnfit, why)
	}
	r, by, err := e.loadRuntime(s)
	if err != nil {
		return nil, "", fmt.Errorf("%w; it is needed because the Go engine does not take the graph: %v", err, why)
	}
	return r, by, nil
}

func (e *engines) loadRuntime(s source) (Program, string, error) {
	if err := s.slow(); err != nil {
		return nil, "", err
	}
	p, err := e.runtime.Load(s.model, s.data, s.again)
	switch {
	case err == nil:
		return p, EngineONNXRuntime, nil
	case errors.Is(err, ErrNoRuntime), errors.Is(err, sandbox.ErrAway):
		return nil, "", err
	}
	return nil, "", fmt.Errorf("%w: %w", ErrUnfit, err)
}
