package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"tidemill.dev/image/archive"
)

// libraryPath is the path of ONNX Runtime in the image.
const libraryPath = "usr/lib/libonnxruntime.so"

// onnxRuntime returns the layer of ONNX Runtime and its licences, which are next to it in the
// cache.
func onnxRuntime(ctx context.Context) ([]archive.File, error) {
	cmd := exec.CommandContext(ctx, "./.ci/onnxruntime-install")
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("get ONNX Runtime: %w", err)
	}
	path := strings.TrimSpace(string(said))
	const doc = "usr/share/doc/onnxruntime/"
	var files []archive.File
	for from, to := range map[string]string{
		path: libraryPath,
		filepath.Join(filepath.Dir(path), "LICENSE"):               doc + "LICENSE",
		filepath.Join(filepath.Dir(path), "ThirdPartyNotices.txt"): doc + "ThirdPartyNotices.txt",
	} {
		data, readErr := os.ReadFile(from)
		err = errors.Join(err, readErr)
		files = append(files, archive.Regular(to, data))
	}
	return files, err
}
