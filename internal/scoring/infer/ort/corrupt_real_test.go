//go:build real

package ort

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// corruptions is the number of damaged files.
const corruptions = 3000

// A damaged file gives an error or a model that answers. None may end the process. The test
// runs them in a child process, because an ended process could not report it.
func TestRealCorruptFiles(t *testing.T) {
	if dir := os.Getenv("TIDEMILL_TEST_CORRUPT"); dir != "" {
		loadCorrupt(t, dir)
		return
	}
	seed := strconv.FormatUint(seedOf(t), 10)
	dir := python(t, "testdata/graphs.py", "12", seed)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRealCorruptFiles$", "-test.v")
	cmd.Env = append(os.Environ(), "TIDEMILL_TEST_CORRUPT="+dir, "TIDEMILL_TEST_SEED="+seed)
	out, err := cmd.CombinedOutput()
	if err != nil {
		kept := filepath.Join(os.TempDir(), "corrupt-"+seed)
		_ = os.WriteFile(kept, out, 0o600)
		t.Fatalf("with TIDEMILL_TEST_SEED=%s: %v; its output is in %s, and ends with\n%s", seed, err, kept, out[max(0, len(out)-2000):])
	}
	t.Log(lastLine(string(out), "damaged files"))
}

// seedOf returns a fixed seed, so that a failure does not depend on chance. Set
// TIDEMILL_TEST_SEED to search for more.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("TIDEMILL_TEST_SEED")
	if text == "" {
		return 2026
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func lastLine(out, with string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, with) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func loadCorrupt(t *testing.T, dir string) {
	r := openLibrary(t)
	source := rand.New(rand.NewPCG(seedOf(t), 2))
	var files [][]byte
	for _, path := range glob(t, dir, "*.onnx") {
		files = append(files, readFile(t, path))
	}
	refused, loaded, ran := 0, 0, 0
	for i := range corruptions {
		fmt.Fprintf(os.Stderr, "file %d\n", i) // after a crash, the last line names the file
		p, err := r.Load(damage(source, files[source.IntN(len(files))]))
		if err != nil {
			refused++
			continue
		}
		loaded++
		if tryRun(p) {
			ran++
		}
		p.Close()
	}
	t.Logf("%d damaged files: %d refused, %d loaded, of which %d answered", corruptions, refused, loaded, ran)
}

// damage changes a few bytes, or cuts, repeats or removes a part. Most changes are near the
// ends, where the graph is and not its numbers.
func damage(r *rand.Rand, file []byte) []byte {
	b := append([]byte(nil), file...)
	for range 1 + r.IntN(4) {
		at := anywhere(r, len(b))
		switch r.IntN(6) {
		case 0:
			b = b[:at+1]
		case 1:
			to := min(at+r.IntN(64), len(b))
			b = append(b[:at:at], b[to:]...)
		case 2:
			to := min(at+r.IntN(64), len(b))
			b = append(b[:to:to], b[at:]...)
		default:
			b[at] ^= 1 << r.IntN(8)
		}
		if len(b) == 0 {
			return []byte{8}
		}
	}
	return b
}

func anywhere(r *rand.Rand, n int) int {
	if edge := min(n, 600); r.IntN(3) > 0 {
		at := r.IntN(edge)
		if r.IntN(2) == 0 {
			return n - 1 - at
		}
		return at
	}
	return r.IntN(n)
}

// tryRun runs a model with inputs of the declared shapes, unless they are large.
func tryRun(p *Program) bool {
	in := make([]tensor.Tensor, len(p.Inputs()))
	for i, s := range p.Inputs() {
		n, shape := 1, []int{}
		for _, d := range s.Shape {
			d = max(d, 1)
			if n *= d; n > 1<<20 || d > 1<<20 {
				return false
			}
			shape = append(shape, d)
		}
		in[i] = tensor.Tensor{Type: s.Type, Shape: shape, Floats: make([]float32, n), Doubles: make([]float64, n), Ints: make([]int64, n), Strings: make([]string, n)}
	}
	return p.Run(in, make([]tensor.Tensor, len(p.Outputs()))) == nil
}
