package ort

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		name, asked, programDir, system string
		want                            []place
	}{
		{"asked for", "/opt/ort/lib.so", "/usr/bin", "linux", []place{{"/opt/ort/lib.so", true}}},
		{"beside the program first", "", "/usr/bin", "linux", []place{{path: "/usr/bin/libonnxruntime.so"}, {path: "libonnxruntime.so"}}},
		{"another system's name", "", "/usr/bin", "darwin", []place{{path: "/usr/bin/libonnxruntime.dylib"}, {path: "libonnxruntime.dylib"}}},
		{"no program", "", "", "linux", []place{{path: "libonnxruntime.so"}}},
	} {
		if got := candidates(c.asked, c.programDir, c.system); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestWhereToLookTakesAFolder(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(Variable, dir)
	if got := whereToLook(""); len(got) != 1 || filepath.Dir(got[0].path) != dir {
		t.Errorf("%v, want the library in %s", got, dir)
	}
	if got := whereToLook("/other.so"); got[0].path != "/other.so" {
		t.Errorf("%v, want what was asked for", got)
	}
}

// If the library is missing or invalid, the error says how to install it.
func TestOpenWhatIsNotThere(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.so")
	if err := os.WriteFile(other, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/nowhere/libonnxruntime.so", other} {
		_, err := Open(path)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "make onnxruntime") {
			t.Errorf("%v, want that %s is missing and how to get it", err, path)
		}
	}
}

func TestPlain(t *testing.T) {
	for message, want := range map[string]string{
		"/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const Path&) Unsupported model IR version: 14": "Unsupported model IR version: 14",
		"Exception during initialization: /onnxruntime_src/a/b.cc:235 A::Locale::Locale(const std::string&)::<lambda()> Failed to construct locale":        "Exception during initialization: Failed to construct locale",
		"Got invalid dimensions for input: x\n index: 1 Got: 3 Expected: 512\n":                                                                            "Got invalid dimensions for input: x index: 1 Got: 3 Expected: 512",
	} {
		if got := plain(message); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTextsForC(t *testing.T) {
	var b buffer
	if err := b.terminate([]string{"hi", "", "there"}); err != nil {
		t.Fatal(err)
	}
	if string(b.bytes) != "hi\x00\x00there\x00" || b.texts[1]-b.texts[0] != 3 || b.texts[2]-b.texts[0] != 4 {
		t.Errorf("%q at %v", b.bytes, b.texts)
	}
	if err := b.terminate([]string{"a", "b\x00c"}); err == nil || !strings.Contains(err.Error(), "text 1") {
		t.Errorf("%v, want that text 1 would be cut", err)
	}
}

func TestCut(t *testing.T) {
	if got := splitText("hithere", []uintptr{0, 2, 2}, nil); !slices.Equal(got, []string{"hi", "", "there"}) {
		t.Errorf("%q", got)
	}
}

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		shape []int
		n     int
		ok    bool
	}{{nil, 1, true}, {[]int{2, 3}, 6, true}, {[]int{0, 3}, 0, true}, {[]int{-1, 3}, 0, false}, {[]int{1 << 30, 1 << 30, 1 << 30}, 0, false}} {
		var b buffer
		if n, err := b.shape(c.shape); n != c.n || (err == nil) != c.ok {
			t.Errorf("%v has %d elements, %v", c.shape, n, err)
		}
	}
}

// Values that the library stores in other types are converted in both directions.
func TestConversions(t *testing.T) {
	for _, kind := range []tensor.Type{tensor.Float, tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool} {
		var b buffer
		from := tensor.Tensor{Type: kind, Floats: []float32{1, 0, 1}, Doubles: []float64{1, 0, 1}, Ints: []int64{1, 0, 1}}
		p, _ := b.data(&from, 3)
		to := tensor.Tensor{Type: kind}
		copyOut(&to, p, 3)
		if length(&to) != 3 || len(to.Floats) == 3 && to.Floats[2] != 1 || len(to.Doubles) == 3 && to.Doubles[2] != 1 || len(to.Ints) == 3 && !slices.Equal(to.Ints, from.Ints) {
			t.Errorf("type %d: %+v", kind, to)
		}
	}
}
