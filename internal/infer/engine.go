package infer

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"tidemill.dev/internal/infer/native"
	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/ort"
	"tidemill.dev/internal/infer/tensor"
)

// Program is a graph that an engine has made ready. It is safe for concurrent use
// until it is closed.
type Program interface {
	Inputs() []tensor.Spec
	Outputs() []tensor.Spec
	Metadata() map[string]string
	Bytes() int64
	Run(in, out []tensor.Tensor) error
	Close()
}

var (
	_ Program = (*native.Program)(nil)
	_ Program = (*ort.Program)(nil)
)

// engines makes programs. ONNX Runtime is looked for when the first graph needs
// it, and again for the next one if it was not there: somebody may install it.
type engines struct {
	path string // of ONNX Runtime; empty is to look for it

	lock    sync.Mutex
	runtime *ort.Runtime
}

// load makes a program of a file, and tells by which engine. An error is ErrUnfit
// unless the same file may load elsewhere, or later.
func (e *engines) load(engine string, data []byte) (p Program, by string, err error) {
	defer func() {
		if r := recover(); r != nil { // an engine's mistake over one file must not end the others
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

// loadEither prefers the Go engine. That it does not take a graph is no verdict
// here: the error of the other engine is, and says why that was needed.
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
