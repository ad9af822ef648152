// Package ort is ONNX Runtime as an engine, loaded at run time without cgo; see
// DESIGN.md.
package ort

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// ErrMissing says that there is no ONNX Runtime here. The error says how to get it.
var ErrMissing = errors.New("ONNX Runtime is not here")

// Runtime is a loaded library. One is opened a process, and stays until it ends. It
// is safe for concurrent use.
type Runtime struct {
	version, path string
	api           *[functions]uintptr
	env, options  unsafe.Pointer // of all sessions
	memory        unsafe.Pointer // says that tensors are in our memory
	allocator     unsafe.Pointer
	calls         sync.Pool // of *call: what a Run needs
}

// Open loads the library: from the path given, else TIDEMILL_ONNXRUNTIME's, else
// beside the program, else from the system's library path.
func Open(path string) (*Runtime, error) {
	base, path, err := load(whereToLook(path))
	if err != nil {
		return nil, err
	}
	r := &Runtime{path: path}
	if err := r.bind(base); err != nil {
		return nil, fmt.Errorf("open ONNX Runtime %s: %w", path, err)
	}
	if err := r.prepare(); err != nil {
		return nil, fmt.Errorf("start ONNX Runtime %s of %s: %w", r.version, path, err)
	}
	return r, nil
}

// Version is that of the library, and where it was found.
func (r *Runtime) Version() (version, path string) { return r.version, r.path }

// bind finds the functions. The library's table only ever grows, so an old one
// serves with all newer libraries.
func (r *Runtime) bind(base uintptr) error {
	entry := (*[2]uintptr)(address(base)) // GetApi and GetVersionString
	r.version = text(address(invoke(entry[1])))
	table := invoke(entry[0], apiVersion)
	if table == 0 {
		return fmt.Errorf("version %s has no API of version %d; take a newer one (make onnxruntime)", r.version, apiVersion)
	}
	r.api = (*[functions]uintptr)(address(table))
	return nil
}

// prepare makes what all sessions share.
func (r *Runtime) prepare() error {
	name := []byte("tidemill\x00")
	// Errors come back from each call, so that nothing need be written to the
	// standard error as well.
	if err := r.do(createEnv, logFatal, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&r.env))); err != nil {
		return err
	}
	if err := r.do(createCPUMemoryInfo, deviceAllocator, memoryDefault, uintptr(unsafe.Pointer(&r.memory))); err != nil {
		return err
	}
	if err := r.do(getAllocatorWithDefaultOptions, uintptr(unsafe.Pointer(&r.allocator))); err != nil {
		return err
	}
	r.calls.New = func() any { return new(call) }
	return r.makeOptions()
}

// makeOptions chooses for thousands of small sessions that many goroutines run: one
// thread, which is the caller's, so that there is none to wake or to spin; no arena,
// which would hold what the greatest batch took, once a session.
func (r *Runtime) makeOptions() error {
	if err := r.do(createSessionOptions, uintptr(unsafe.Pointer(&r.options))); err != nil {
		return err
	}
	for _, set := range []struct {
		function function
		value    uintptr
	}{
		{setIntraOpNumThreads, 1},
		{setInterOpNumThreads, 1},
		{setSessionGraphOptimizationLevel, optimizeAll},
	} {
		if err := r.do(set.function, uintptr(r.options), set.value); err != nil {
			return err
		}
	}
	for _, f := range []function{disableCPUMemArena, disableMemPattern} {
		if err := r.do(f, uintptr(r.options)); err != nil {
			return err
		}
	}
	// It would take files of its own format, too, which it does not check.
	key, value := []byte("session.load_model_format\x00"), []byte("ONNX\x00")
	return r.do(addSessionConfigEntry, uintptr(r.options), uintptr(unsafe.Pointer(&key[0])), uintptr(unsafe.Pointer(&value[0])))
}
