//go:build !linux

package sandbox

import (
	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Argument is the argument with which the program calls itself as a child, on Linux.
const Argument = "onnx-runtime-child"

// Child is the main function of the child, which only Linux has.
func Child(string) error { return nil }

// process stands for this process, which has the library itself.
type process struct{ library *ort.Runtime }

// Load loads a model in this process, because this system has no child.
func (p *Pool) Load(_ string, file []byte, _ func() ([]byte, error)) (*Program, error) {
	r, err := p.open()
	if err != nil {
		return nil, err
	}
	l, err := r.Load(file)
	if err != nil {
		return nil, err
	}
	return &Program{l}, nil
}

func (p *Pool) open() (*ort.Runtime, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		return p.child.library, nil
	}
	r, err := ort.Open(p.o.Library)
	if err != nil {
		return nil, err
	}
	p.log.Warn("models: ONNX Runtime runs in this process, because only Linux has a process for it; serve only models of your own, or set engine: go")
	p.child = &process{library: r}
	return r, nil
}

// Close does nothing: the library cannot be unloaded.
func (p *Pool) Close() {}

// Program is a model in this process.
type Program struct{ *ort.Program }

// RunWithin is Run. The memory of the outputs is not limited before it is taken.
func (l *Program) RunWithin(_ tensor.Budget, in, out []tensor.Tensor) error { return l.Run(in, out) }
