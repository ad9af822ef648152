package infer

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/ort"
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
	Close()
}

// ErrNoRuntime reports that a model needs ONNX Runtime, and that it is not installed here.
var ErrNoRuntime = ort.ErrMissing

var (
	_ Program = (*native.Program)(nil)
	_ Program = (*ort.Program)(nil)
)

// engines makes programs. The first graph that needs ONNX Runtime triggers the search
// for its library. If it was missing, the next such graph searches again, because it
// may have been installed since.
type engines struct {
	path string // path of ONNX Runtime; empty means to search for it

	lock    sync.Mutex
	runtime *ort.Runtime
}

// load makes a program from a file and returns the name of its engine. The error is
// ErrUnfit unless the same file may load elsewhere, or later.
func (e *engines) load(engine string, data []byte) (p Program, by string, err error) {
	defer func() {
		if r := recover(); r != nil { // a bug of the engine with one file must not stop the other models
			p, err = nil, fmt.Errorf("%w: the engine failed over the file: %v\n%s", ErrUnfit, r, debug.Stack())
		}
	}()
	switch engine {
	case EngineGo:
		p, err := native.Load(data)
		switch {
		case errors.Is(err, onnx.ErrUnsupported):
			return nil, "", fmt.Errorf("%w: %w; set the scorer's engine to %s or %s", ErrUnfit, err, EngineAuto, EngineONNXRuntime)
		case err != nil:
			return nil, "", fmt.Errorf("%w: %w", ErrUnfit, err)
		}
		return p, EngineGo, nil
	case EngineONNXRuntime:
		return e.loadRuntime(data)
	case EngineAuto:
		return e.loadEither(data)
	}
	return nil, "", fmt.Errorf("%w: there is no engine %q; use %s, %s or %s", ErrUnfit, engine, EngineAuto, EngineGo, EngineONNXRuntime)
}

// loadEither prefers the Go engine. If that does not support the graph, the other
// engine's error counts, together with the reason why it was needed.
func (e *engines) loadEither(data []byte) (Program, string, error) {
	p, why := native.Load(data)
	switch {
	case why == nil:
		return p, EngineGo, nil
	case !errors.Is(why, onnx.ErrUnsupported):
		return nil, "", fmt.Errorf("%w: %w", ErrUnfit, why)
	}
	r, by, err := e.loadRuntime(data)
	if err != nil {
		return nil, "", fmt.Errorf("%w; it is needed because the Go engine does not take the graph: %v", err, why)
	}
	return r, by, nil
}

func (e *engines) loadRuntime(data []byte) (Program, string, error) {
	r, err := e.open()
	if err != nil {
		return nil, "", err
	}
	p, err := r.Load(data)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return p, EngineONNXRuntime, nil
}

func (e *engines) open() (*ort.Runtime, error) {
	e.lock.Lock()
	defer e.lock.Unlock()
	if e.runtime != nil {
		return e.runtime, nil
	}
	r, err := ort.Open(e.path)
	if err == nil {
		e.runtime = r
	}
	return r, err
}
