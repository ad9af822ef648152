package ort

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// ErrMissing means that ONNX Runtime was not found. The error says how to install it.
var ErrMissing = errors.New("ONNX Runtime is not installed")

// Runtime is a loaded library. A process opens one and keeps it until it exits. It is
// safe for concurrent use.
type Runtime struct {
	version, path string
	api           *[functions]uintptr
	env, options  unsafe.Pointer // shared by all sessions
	memory        unsafe.Pointer // describes tensors in Go's memory
	allocator     unsafe.Pointer
	calls         sync.Pool // pool of *call, one for each concurrent Run
}

// Open loads the library. It tries the given path, else TIDEMILL_ONNXRUNTIME, else the
// program's folder, else the system's library path.
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

// Version returns the library's version and path.
func (r *Runtime) Version() (version, path string) { return r.version, r.path }

// bind finds the functions. The library's table only grows, so the oldest usable
// version of it works with all newer libraries.
func (r *Runtime) bind(base uintptr) error {
	entry := (*[2]uintptr)(address(base)) // addresses of GetApi and GetVersionString
	r.version = text(address(invoke(entry[1])))
	table := invoke(entry[0], apiVersion)
	if table == 0 {
		return fmt.Errorf("version %s has no API of version %d; take a newer one (make onnxruntime)", r.version, apiVersion)
	}
	r.api = (*[functions]uintptr)(address(table))
	return nil
}

// prepare makes the objects that all sessions share.
func (r *Runtime) prepare() error {
	name := []byte("tidemill\x00")
	// Every call returns its error, so the library need not log to standard error as
	// well.
	if err := r.callStatus(createEnv, logFatal, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&r.env))); err != nil {
		return err
	}
	if err := r.callStatus(createCPUMemoryInfo, deviceAllocator, memoryDefault, uintptr(unsafe.Pointer(&r.memory))); err != nil {
		return err
	}
	if err := r.callStatus(getAllocatorWithDefaultOptions, uintptr(unsafe.Pointer(&r.allocator))); err != nil {
		return err
	}
	r.calls.New = func() any { return new(runBuffers) }
	return r.makeOptions()
}

// makeOptions chooses options for thousands of small sessions that many goroutines run.
// One thread, the caller's, avoids waking and spinning. No arena, because each session
// would keep the memory of its largest batch.
func (r *Runtime) makeOptions() error {
	if err := r.callStatus(createSessionOptions, uintptr(unsafe.Pointer(&r.options))); err != nil {
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
		if err := r.callStatus(set.function, uintptr(r.options), set.value); err != nil {
			return err
		}
	}
	for _, f := range []function{disableCPUMemArena, disableMemPattern} {
		if err := r.callStatus(f, uintptr(r.options)); err != nil {
			return err
		}
	}
	// Without this option the library also accepts its own file format, which it does
	// not check.
	key, value := []byte("session.load_model_format\x00"), []byte("ONNX\x00")
	return r.callStatus(addSessionConfigEntry, uintptr(r.options), uintptr(unsafe.Pointer(&key[0])), uintptr(unsafe.Pointer(&value[0])))
}

// apiVersion is the oldest version that has all functions below: ONNX Runtime 1.5.
const apiVersion = 5

// function is an index into the library's table of functions, OrtApi in
// onnxruntime_c_api.h. Indexes never change: the library does not compile if the size
// of an older version has changed.
type function int

const (
	getErrorCode                         function = 1
	getErrorMessage                      function = 2
	createEnv                            function = 3
	createSessionFromArray               function = 8
	run                                  function = 9
	createSessionOptions                 function = 10
	disableMemPattern                    function = 17
	disableCPUMemArena                   function = 19
	setSessionGraphOptimizationLevel     function = 23
	setIntraOpNumThreads                 function = 24
	setInterOpNumThreads                 function = 25
	sessionGetInputCount                 function = 30
	sessionGetOutputCount                function = 31
	sessionGetInputTypeInfo              function = 33
	sessionGetOutputTypeInfo             function = 34
	sessionGetInputName                  function = 36
	sessionGetOutputName                 function = 37
	createTensorAsOrtValue               function = 48
	createTensorWithDataAsOrtValue       function = 49
	getTensorMutableData                 function = 51
	fillStringTensor                     function = 52
	getStringTensorDataLength            function = 53
	getStringTensorContent               function = 54
	castTypeInfoToTensorInfo             function = 55
	getOnnxTypeFromTypeInfo              function = 56
	getTensorElementType                 function = 60
	getDimensionsCount                   function = 61
	getDimensions                        function = 62
	getTensorTypeAndShape                function = 65
	createCPUMemoryInfo                  function = 69
	allocatorFree                        function = 76
	getAllocatorWithDefaultOptions       function = 78
	releaseStatus                        function = 93
	releaseSession                       function = 95
	releaseValue                         function = 96
	releaseTypeInfo                      function = 98
	releaseTensorTypeAndShapeInfo        function = 99
	sessionGetModelMetadata              function = 111
	modelMetadataLookupCustomMetadataMap function = 116
	releaseModelMetadata                 function = 118
	modelMetadataGetCustomMetadataKeys   function = 123
	addSessionConfigEntry                function = 130

	functions = 131
)

// Values of the library's enumerations.
const (
	logFatal        = 4
	optimizeAll     = 99
	deviceAllocator = 0
	memoryDefault   = 0
	kindTensor      = 1
)

// callStatus calls a function that returns a status. Callers convert pointers to Go's memory in
// the argument list, which keeps the memory in place.
//
//go:uintptrescapes
func (r *Runtime) callStatus(f function, args ...uintptr) error {
	if status := invoke(r.api[f], args...); status != 0 {
		return r.failure(status)
	}
	return nil
}

// release calls a function without a result.
func (r *Runtime) release(f function, what unsafe.Pointer) {
	if what != nil {
		invoke(r.api[f], uintptr(what))
	}
}

// failure reads a status and frees it.
func (r *Runtime) failure(status uintptr) error {
	defer func() { invoke(r.api[releaseStatus], status) }()
	message := plain(text(address(invoke(r.api[getErrorMessage], status))))
	return fmt.Errorf("%s (ONNX Runtime %s, code %d)", message, r.version, invoke(r.api[getErrorCode], status))
}

// sourcePosition matches a position in the library's source code and that function's name.
var sourcePosition = regexp.MustCompile(`/onnxruntime_src/\S+ [^()]*\([^()]*\)(::<lambda\(\)>)? |\s*\n\s*`)

// plain shortens a message to one line without details for the library's developers.
func plain(message string) string {
	return strings.TrimSpace(sourcePosition.ReplaceAllStringFunc(message, func(part string) string {
		if strings.HasPrefix(part, "/") {
			return ""
		}
		return " "
	}))
}

// address converts a C address to a pointer.
func address(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// text copies a C string.
func text(p unsafe.Pointer) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// Variable is the environment variable with the path of the library.
const Variable = "TIDEMILL_ONNXRUNTIME"

// place is a path that may have the library.
type place struct {
	path string
	only bool // requested by the user: no other place is tried
}

// whereToLook returns the candidates. It follows symbolic links to find the program's
// folder.
func whereToLook(path string) []place {
	if path == "" {
		path = os.Getenv(Variable)
	}
	var programDir string
	if program, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(program); err == nil {
			program = real
		}
		programDir = filepath.Dir(program)
	}
	if path != "" {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, libraryName(runtime.GOOS))
		}
	}
	return candidates(path, programDir, runtime.GOOS)
}

// candidates returns the files to try. A name without a folder is searched for in the
// system's library path.
func candidates(asked, programDir, system string) []place {
	if asked != "" {
		return []place{{asked, true}}
	}
	name := libraryName(system)
	var all []place
	if programDir != "" {
		all = append(all, place{path: filepath.Join(programDir, name)})
	}
	return append(all, place{path: name})
}

func libraryName(system string) string {
	if system == "darwin" {
		return "libonnxruntime.dylib"
	}
	return "libonnxruntime.so"
}

// missing says how to install the library, and then lists the tried paths, because lists of models
// cut the end.
func missing(places []place, reasons []error) error {
	next := "give its path in " + Variable
	if places[0].only {
		next = "look at " + Variable
	}
	return fmt.Errorf("%w: get it with make onnxruntime, or %s (%w)", ErrMissing, next, inLine(reasons))
}

// inLine joins errors on one line.
func inLine(all []error) error {
	err := all[0]
	for _, next := range all[1:] {
		err = fmt.Errorf("%w; %w", err, next)
	}
	return err
}
