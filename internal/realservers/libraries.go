package realservers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The CloudEvents libraries of other languages that the gateway is held
// against.
const (
	pythonLibrary = "cloudevents==2.2.0"
	nodeLibrary   = "cloudevents@10.0.0"
	// onnxLibrary checks models, and has an evaluator that is slow and right.
	onnxLibrary = "onnx==1.23.2"
	// onnxRuntime is what most people serve them with.
	onnxRuntime = "onnxruntime==1.31.1"
)

// Python is a python3 with arguments that finds Python's cloudevents, which it
// gets from PyPI the first time.
func Python(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, pythonLibrary)
}

// PythonONNX is a python3 that finds ONNX's own library.
func PythonONNX(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, onnxLibrary)
}

// PythonONNXRuntime is a python3 that finds ONNX Runtime and ONNX's own library.
func PythonONNXRuntime(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, onnxLibrary, onnxRuntime)
}

// pythonLibraries is the folder of some, which are got the first time.
func pythonLibraries(ctx context.Context, libraries ...string) (string, error) {
	return cached("python-"+strings.Join(libraries, "-"), func(dir string) error {
		pip := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", dir}
		return install(ctx, dir, "python3", append(pip, libraries...)...)
	})
}

func pythonWith(ctx context.Context, args []string, libraries ...string) (*exec.Cmd, error) {
	dir, err := pythonLibraries(ctx, libraries...)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	return cmd, nil
}

// NodeModules is a folder of modules with npm's cloudevents, which it gets from
// npm's registry the first time. Node finds them in a folder node_modules above
// a script, which a link may be.
func NodeModules(ctx context.Context) (string, error) {
	dir, err := cached("node-"+nodeLibrary, func(dir string) error {
		return install(ctx, dir, "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir, nodeLibrary)
	})
	return filepath.Join(dir, "node_modules"), err
}

func install(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w; is it installed (.ci/real-servers-install), is its registry in reach? %s", name, args[len(args)-1], err, out)
	}
	return nil
}
