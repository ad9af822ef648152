package ort

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Variable is where the environment says which library is to be loaded.
const Variable = "TIDEMILL_ONNXRUNTIME"

// place is where the library may be.
type place struct {
	path string
	only bool // it was asked for: no other will do
}

// whereToLook finds the folder of the program, whose symbolic links are followed.
func whereToLook(path string) []place {
	if path == "" {
		path = os.Getenv(Variable)
	}
	var beside string
	if program, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(program); err == nil {
			program = real
		}
		beside = filepath.Dir(program)
	}
	if path != "" {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, libraryName(runtime.GOOS))
		}
	}
	return candidates(path, beside, runtime.GOOS)
}

// candidates are the files to try. A name without a folder is searched for in the
// system's library path.
func candidates(asked, beside, system string) []place {
	if asked != "" {
		return []place{{asked, true}}
	}
	name := libraryName(system)
	var all []place
	if beside != "" {
		all = append(all, place{path: filepath.Join(beside, name)})
	}
	return append(all, place{path: name})
}

func libraryName(system string) string {
	if system == "darwin" {
		return "libonnxruntime.dylib"
	}
	return "libonnxruntime.so"
}

// missing says what was tried, and what to do.
func missing(places []place, reasons []error) error {
	next := "give its path in " + Variable
	if places[0].only {
		next = "look at " + Variable
	}
	return fmt.Errorf("%w: %w; get it with make onnxruntime, or %s", ErrMissing, inLine(reasons), next)
}

// inLine joins errors without a line break.
func inLine(all []error) error {
	err := all[0]
	for _, next := range all[1:] {
		err = fmt.Errorf("%w; %w", err, next)
	}
	return err
}
