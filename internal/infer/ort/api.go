package ort

import (
	"fmt"
	"regexp"
	"strings"
	"unsafe"
)

// apiVersion is the oldest that has all functions below: that of ONNX Runtime 1.5.
const apiVersion = 5

// function is a place in the library's table of functions, OrtApi of its
// onnxruntime_c_api.h. Places are never moved: the library is compiled only if the
// size of each former version is as it was.
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

// do calls a function that answers with a status. Pointers to Go's memory are
// converted where it is called, which keeps what they point to where it is.
//
//go:uintptrescapes
func (r *Runtime) do(f function, args ...uintptr) error {
	if status := invoke(r.api[f], args...); status != 0 {
		return r.failure(status)
	}
	return nil
}

// release calls a function that answers nothing.
func (r *Runtime) release(f function, what unsafe.Pointer) {
	if what != nil {
		invoke(r.api[f], uintptr(what))
	}
}

// failure reads a status, and lets it go.
func (r *Runtime) failure(status uintptr) error {
	defer func() { invoke(r.api[releaseStatus], status) }()
	message := plain(text(address(invoke(r.api[getErrorMessage], status))))
	return fmt.Errorf("%s (ONNX Runtime %s, code %d)", message, r.version, invoke(r.api[getErrorCode], status))
}

// inside is a place in the library's source, with the function there.
var inside = regexp.MustCompile(`/onnxruntime_src/\S+ [^()]*\([^()]*\)(::<lambda\(\)>)? |\s*\n\s*`)

// plain is a message without what only the library's authors read, in a line.
func plain(message string) string {
	return strings.TrimSpace(inside.ReplaceAllStringFunc(message, func(part string) string {
		if strings.HasPrefix(part, "/") {
			return ""
		}
		return " "
	}))
}

// address is where C's memory is.
func address(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// text copies a text of C's.
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
