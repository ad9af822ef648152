//go:build real

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// runsInImage is set when this test program runs in the image.
const runsInImage = "TIDEMILL_TEST_INSIDE_THE_IMAGE"

func TestMain(m *testing.M) {
	if os.Getenv(runsInImage) == "" {
		os.Exit(m.Run())
	}
	if err := addNumbers(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestRealImage(t *testing.T) {
	t.Chdir("..")
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.tar"), filepath.Join(dir, "second.tar")
	for _, path := range []string{first, second} {
		if err := run(t.Context(), []string{"-name", "dev.local/tidemill:test", "-o", path}, t.Output()); err != nil {
			t.Fatal(err)
		}
	}
	if sumOf(first) == "" || sumOf(first) != sumOf(second) {
		t.Error("the same files have become two different images")
	}
	c, err := read(first)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "dev.local/tidemill:test" || !slices.Equal(c.Config.Entrypoint, []string{entrypoint}) || c.Config.User != "65532:65532" ||
		!strings.Contains(c.Config.Labels["dev.tidemill.packages"], "libc6=") || c.Config.Labels["org.opencontainers.image.version"] == "" {
		t.Errorf("%s: %+v", c.Name, c.Config)
	}
	for _, p := range programs() {
		leavesMethodsOut(t, filepath.Join("bin", "image", p.name))
	}
	root := filepath.Join(dir, "root")
	for _, l := range c.Layers {
		extract(t, root, l.Tar)
	}
	// The volumes of a run's pod are mounted there.
	if info, err := os.Stat(filepath.Join(root, "tidemill")); err == nil && !info.IsDir() {
		t.Error("/tidemill is a file, so that nothing can be mounted below it")
	}
	sameAsFolders(t, root)
	if os.Getuid() != 0 {
		t.Skip("what is in the image is not run: only root may change its root folder")
	}
	ranInside(t, root, c.Config)
}

// If a program calls methods by names that are computed at run time, the linker keeps every method
// of every type. That is a quarter of the program and of its memory.
func leavesMethodsOut(t *testing.T, program string) {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, function := range []string{"text/template.(*state).evalField", "html/template.(*Template).Execute"} {
		if bytes.Contains(data, []byte(function)) {
			t.Errorf("%s holds %s: find who brings it with go build -ldflags=-dumpdep", program, function)
		}
	}
}

func extract(t *testing.T, root string, raw []byte) {
	t.Helper()
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("tar", "-x", "-p", "--no-overwrite-dir", "-C", root)
	cmd.Stdin = bytes.NewReader(raw)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

// The Dockerfile's folders, one over another, are equal to the image.
func sameAsFolders(t *testing.T, root string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "image")
	if err := run(t.Context(), []string{"-folder", folder}, io.Discard); err != nil {
		t.Fatal(err)
	}
	together := filepath.Join(folder, "all")
	for _, layer := range []string{layerBase, layerRuntime, layerPrograms} {
		if said, err := exec.Command("cp", "-a", filepath.Join(folder, layer)+"/.", together+"/").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	if said, err := exec.Command("diff", "-r", "--no-dereference", root, together).CombinedOutput(); err != nil {
		t.Errorf("%v: %.2000s", err, said)
	}
}

// ranInside runs the image's programs and this test program as the image's user and with its
// variables. This program calls ONNX Runtime.
func ranInside(t *testing.T, root string, c v1.Config) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "asks"), self, 0o755); err != nil {
		t.Fatal(err)
	}
	// Only the test's user may read a test's folders.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{entrypoint, "version"}, "tidemill ", 0},
		{[]string{"/tidemill-agent"}, "call it with install", 2},
		{[]string{"/asks"}, "libonnxruntime.so: [0.25 0.75]", 0},
	} {
		cmd := exec.CommandContext(t.Context(), x.args[0], x.args[1:]...)
		cmd.Path, cmd.Err, cmd.Dir = x.args[0], nil, "/"
		cmd.Env = append(slices.Clone(c.Env), runsInImage+"=yes")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser}}
		said, err := cmd.CombinedOutput()
		if !strings.Contains(string(said), x.want) || cmd.ProcessState.ExitCode() != x.code {
			t.Errorf("%v said %q, %v", x.args, said, err)
		}
	}
}

// addNumbers adds two numbers with the ONNX Runtime that the environment names.
func addNumbers(w io.Writer) error {
	r, err := ort.Open("")
	if err != nil {
		return err
	}
	p, err := r.Load(additionModel())
	if err != nil {
		return err
	}
	defer p.Close()
	out := make([]tensor.Tensor, 1)
	if err := p.Run([]tensor.Tensor{{Type: tensor.Float, Shape: []int{2}, Floats: []float32{0, 0.5}}}, out); err != nil {
		return err
	}
	_, path := r.Version()
	_, err = fmt.Fprintf(w, "%s: %v\n", path, out[0].Floats)
	return err
}

// additionModel is a model that adds a quarter to each of two numbers.
func additionModel() []byte {
	value := func(name string) []byte { // two floats
		shape := field(1, number(1, 2))
		return append(text(1, name), field(2, field(1, append(number(1, 1), field(2, shape)...)))...)
	}
	quarters := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.25)), math.Float32bits(0.25))
	graph := slices.Concat(
		field(1, slices.Concat(text(1, "x"), text(1, "quarter"), text(2, "y"), text(4, "Add"))),
		text(2, "addition"),
		field(5, slices.Concat(number(1, 2), number(2, 1), text(8, "quarter"), field(9, quarters))),
		field(11, value("x")), field(12, value("y")))
	return slices.Concat(number(1, 7), field(7, graph), field(8, append(text(1, ""), number(2, 13)...)))
}

func number(tag, n int) []byte { return binary.AppendUvarint([]byte{byte(tag << 3)}, uint64(n)) }

func field(tag int, data []byte) []byte {
	return append(binary.AppendUvarint([]byte{byte(tag<<3 | 2)}, uint64(len(data))), data...)
}

func text(tag int, s string) []byte { return field(tag, []byte(s)) }
