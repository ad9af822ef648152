package ort

import (
	"errors"
	"fmt"
	"unsafe"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

// Program is a session. It is safe for concurrent use. The methods are those of
// native.Program.
type Program struct {
	r               *Runtime
	session         unsafe.Pointer
	inputs, outputs []tensor.Spec
	names           []unsafe.Pointer // of the inputs, then the outputs, in C's memory
	metadata        map[string]string
	size            int64
}

// Load makes a model ready. A file that is damaged is found out before ONNX Runtime
// sees it, which was not written for files from strangers.
func (r *Runtime) Load(data []byte) (*Program, error) {
	if _, err := onnx.Read(data); err != nil && !errors.Is(err, onnx.ErrUnsupported) {
		return nil, err
	}
	p := &Program{r: r, size: sessionBytes(len(data))}
	if err := r.do(createSessionFromArray, uintptr(r.env), uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)),
		uintptr(r.options), uintptr(unsafe.Pointer(&p.session))); err != nil {
		return nil, fmt.Errorf("load the model: %w", err)
	}
	if err := p.describe(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// sessionBytes is what a session was measured to take: its weights, and what
// surrounds them.
func sessionBytes(file int) int64 { return 120<<10 + int64(file) }

// Inputs are what it wants, in the order of Run's.
func (p *Program) Inputs() []tensor.Spec { return p.inputs }

// Outputs are what it answers.
func (p *Program) Outputs() []tensor.Spec { return p.outputs }

// Metadata is what the file says about itself.
func (p *Program) Metadata() map[string]string { return p.metadata }

// Bytes is the memory that it holds, as nearly as can be told.
func (p *Program) Bytes() int64 { return p.size }

// Close ends the session. Nothing may run.
func (p *Program) Close() {
	for _, name := range p.names {
		p.r.free(name)
	}
	p.r.release(releaseSession, p.session)
	p.names, p.session = nil, nil
}

// free gives back what the library's allocator gave. It fails only for no
// allocator.
func (r *Runtime) free(p unsafe.Pointer) {
	if p == nil {
		return
	}
	if status := invoke(r.api[allocatorFree], uintptr(r.allocator), uintptr(p)); status != 0 {
		invoke(r.api[releaseStatus], status)
	}
}
