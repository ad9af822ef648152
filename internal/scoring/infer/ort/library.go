//go:build (darwin || linux) && (amd64 || arm64)

package ort

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// load opens the first library that exists, and finds its entry point.
func load(places []place) (base uintptr, path string, err error) {
	var reasons []error
	for _, p := range places {
		base, err := loadOne(p.path)
		if err == nil {
			return base, p.path, nil
		}
		reasons = append(reasons, err)
		if p.only {
			break
		}
	}
	return 0, "", missing(places, reasons)
}

func loadOne(path string) (uintptr, error) {
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, fmt.Errorf("load %s: %w", path, err)
	}
	entry, err := purego.Dlsym(library, "OrtGetApiBase")
	if err != nil {
		return 0, fmt.Errorf("%s is no ONNX Runtime: %w", path, err)
	}
	return invoke(entry), nil
}

// invoke calls a C function.
//
//go:uintptrescapes
func invoke(function uintptr, args ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(function, args...)
	return result
}
