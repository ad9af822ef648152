package ort

import (
	"errors"
	"fmt"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Program is a session. It is safe for concurrent use. Its methods are the same as
// those of native.Program.
type Program struct {
	r               *Runtime
	session         unsafe.Pointer
	inputs, outputs []tensor.Spec
	names           []unsafe.Pointer // names of the inputs, then of the outputs, in C's memory
	metadata        map[string]string
	labels          []string
	size            int64
}

// Load makes a session. It checks the file first, because ONNX Runtime was not written
// for untrusted files.
func (r *Runtime) Load(data []byte) (*Program, error) {
	m, err := onnx.Read(data)
	if err != nil && !errors.Is(err, onnx.ErrUnsupported) {
		return nil, err
	}
	p := &Program{r: r, size: sessionBytes(len(data))}
	if err == nil {
		p.labels = m.ClassNames()
	}
	if err := r.callStatus(createSessionFromArray, uintptr(r.env), uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)),
		uintptr(r.options), uintptr(unsafe.Pointer(&p.session))); err != nil {
		return nil, fmt.Errorf("load the model: %w", err)
	}
	if err := p.describe(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// sessionBytes estimates the memory of a session from measurements: the weights and a fixed amount.
func sessionBytes(file int) int64 { return 120<<10 + int64(file) }

// Inputs returns the specs of Run's inputs, in their order.
func (p *Program) Inputs() []tensor.Spec { return p.inputs }

// Outputs returns the specs of Run's outputs.
func (p *Program) Outputs() []tensor.Spec { return p.outputs }

// Metadata returns the file's metadata.
func (p *Program) Metadata() map[string]string { return p.metadata }

// Labels returns the names of the classes in the order of the scores; see onnx.Model.ClassNames.
func (p *Program) Labels() []string { return p.labels }

// Bytes returns an estimate of the memory that the session holds.
func (p *Program) Bytes() int64 { return p.size }

// Close ends the session. No Run may be in progress.
func (p *Program) Close() {
	for _, name := range p.names {
		p.r.free(name)
	}
	p.r.release(releaseSession, p.session)
	p.names, p.session = nil, nil
}

// free returns memory to the library's allocator. The call fails only if the library has no
// allocator.
func (r *Runtime) free(p unsafe.Pointer) {
	if p == nil {
		return
	}
	if status := invoke(r.api[allocatorFree], uintptr(r.allocator), uintptr(p)); status != 0 {
		invoke(r.api[releaseStatus], status)
	}
}

// describe reads the session's inputs and outputs.
func (p *Program) describe() error {
	a := &asking{p: p}
	var err error
	if p.inputs, err = a.specs("input", sessionGetInputCount, sessionGetInputName, sessionGetInputTypeInfo); err != nil {
		return err
	}
	if p.outputs, err = a.specs("output", sessionGetOutputCount, sessionGetOutputName, sessionGetOutputTypeInfo); err != nil {
		return err
	}
	return a.metadata()
}

// asking has the variables that the library writes to. They must not be on the stack, which moves.
type asking struct {
	p     *Program
	count uintptr
	name  unsafe.Pointer
	info  unsafe.Pointer
	shape unsafe.Pointer
	kind  int32
	keys  unsafe.Pointer
}

func (a *asking) specs(what string, count, name, info function) ([]tensor.Spec, error) {
	r := a.p.r
	if err := r.callStatus(count, uintptr(a.p.session), uintptr(unsafe.Pointer(&a.count))); err != nil {
		return nil, fmt.Errorf("count the %ss: %w", what, err)
	}
	specs := make([]tensor.Spec, a.count)
	for i := range specs {
		if err := r.callStatus(name, uintptr(a.p.session), uintptr(i), uintptr(r.allocator), uintptr(unsafe.Pointer(&a.name))); err != nil {
			return nil, fmt.Errorf("read the name of %s %d: %w", what, i, err)
		}
		a.p.names = append(a.p.names, a.name)
		specs[i].Name = text(a.name)
		if err := r.callStatus(info, uintptr(a.p.session), uintptr(i), uintptr(unsafe.Pointer(&a.info))); err != nil {
			return nil, fmt.Errorf("read the type of %s %q: %w", what, specs[i].Name, err)
		}
		err := a.read(&specs[i])
		r.release(releaseTypeInfo, a.info)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, specs[i].Name, err)
		}
	}
	return specs, nil
}

// read reads a type, which must be a tensor's.
func (a *asking) read(s *tensor.Spec) error {
	r := a.p.r
	if err := r.callStatus(getOnnxTypeFromTypeInfo, uintptr(a.info), uintptr(unsafe.Pointer(&a.kind))); err != nil {
		return err
	}
	if a.kind != kindTensor {
		return fmt.Errorf("it is %s, no tensor, and %w; export the model without it, for scikit-learn with zipmap=False", kindName(a.kind), onnx.ErrUnsupported)
	}
	if err := r.callStatus(castTypeInfoToTensorInfo, uintptr(a.info), uintptr(unsafe.Pointer(&a.shape))); err != nil {
		return err
	}
	if err := r.callStatus(getTensorElementType, uintptr(a.shape), uintptr(unsafe.Pointer(&a.kind))); err != nil {
		return err
	}
	if s.Type = tensor.Type(a.kind); !taken(s.Type) {
		return fmt.Errorf("elements of ONNX's type %d are not fed to models here: have it take float, double, int32, int64, bool or string", a.kind)
	}
	dims, err := a.dimensions()
	if err != nil {
		return err
	}
	for _, d := range dims {
		s.Shape = append(s.Shape, int(max(d, tensor.Any)))
	}
	return nil
}

// dimensions reads the shape's dimensions.
func (a *asking) dimensions() ([]int64, error) {
	r := a.p.r
	if err := r.callStatus(getDimensionsCount, uintptr(a.shape), uintptr(unsafe.Pointer(&a.count))); err != nil {
		return nil, err
	}
	dims := make([]int64, a.count)
	return dims, r.callStatus(getDimensions, uintptr(a.shape), uintptr(unsafe.Pointer(unsafe.SliceData(dims))), a.count)
}

func taken(t tensor.Type) bool {
	switch t {
	case tensor.Float, tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool, tensor.String:
		return true
	}
	return false
}

// kindName returns ONNX's name of a type other than a tensor.
func kindName(kind int32) string {
	names := []string{"of no kind", "a tensor", "a sequence", "a map", "opaque", "a sparse tensor", "optional"}
	if int(kind) < len(names) {
		return names[kind]
	}
	return "of an unknown kind"
}

// metadata reads the file's metadata.
func (a *asking) metadata() error {
	r := a.p.r
	if err := r.callStatus(sessionGetModelMetadata, uintptr(a.p.session), uintptr(unsafe.Pointer(&a.info))); err != nil {
		return fmt.Errorf("read the model's metadata: %w", err)
	}
	data := a.info
	defer r.release(releaseModelMetadata, data)
	if err := r.callStatus(modelMetadataGetCustomMetadataKeys, uintptr(data), uintptr(r.allocator), uintptr(unsafe.Pointer(&a.keys)),
		uintptr(unsafe.Pointer(&a.count))); err != nil {
		return fmt.Errorf("read the model's metadata: %w", err)
	}
	if a.keys == nil {
		return nil
	}
	keys := unsafe.Slice((*unsafe.Pointer)(a.keys), a.count)
	defer func() {
		for _, key := range keys {
			r.free(key)
		}
		r.free(unsafe.Pointer(unsafe.SliceData(keys)))
	}()
	a.p.metadata = make(map[string]string, len(keys))
	for _, key := range keys {
		if err := r.callStatus(modelMetadataLookupCustomMetadataMap, uintptr(data), uintptr(r.allocator), uintptr(key), uintptr(unsafe.Pointer(&a.name))); err != nil {
			return fmt.Errorf("read the model's metadata: %w", err)
		}
		a.p.metadata[text(key)] = text(a.name)
		r.free(a.name)
	}
	return nil
}
