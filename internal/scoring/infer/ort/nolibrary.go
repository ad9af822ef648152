//go:build !((darwin || linux) && (amd64 || arm64))

package ort

import (
	"fmt"
	"runtime"
)

func load([]place) (base uintptr, path string, err error) {
	return 0, "", fmt.Errorf("%w: it is not supported on %s/%s; models that the Go engine supports are still served", ErrMissing, runtime.GOOS, runtime.GOARCH)
}

func invoke(uintptr, ...uintptr) uintptr { return 0 }
