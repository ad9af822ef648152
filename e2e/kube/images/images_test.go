package images_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/e2e/kube/images"
	"tidemill.dev/image/archive"
)

// The images of programs hold a program that runs without other files, and a second build gives the
// same image.
func TestImagesOfPrograms(t *testing.T) {
	for name, says := range map[string]string{images.Job: "call it with one of", images.Intents: "find TIDEMILL_IN"} {
		c := build(t, name)
		if again := build(t, name); again.Digest != c.Digest {
			t.Errorf("%s is %s and then %s", name, c.Digest, again.Digest)
		}
		if c.Name != name || len(c.Layers) != 1 || c.Config.Env[1] != images.Inherited+"="+strings.TrimPrefix(c.Config.Entrypoint[0], "/") {
			t.Fatalf("%+v", c)
		}
		cmd := exec.CommandContext(t.Context(), program(t, c.Layers[0].Tar, c.Config.Entrypoint[0]))
		cmd.Env = []string{"PATH="}
		if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), says) {
			t.Errorf("%s said %q, %v", name, said, err)
		}
	}
}

func build(t *testing.T, name string) archive.Content {
	t.Helper()
	file, err := images.Build(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := archive.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// program unpacks the layer's only file.
func program(t *testing.T, layer []byte, name string) string {
	t.Helper()
	in := tar.NewReader(bytes.NewReader(layer))
	h, err := in.Next()
	if err != nil || "/"+h.Name != name {
		t.Fatalf("the layer holds %v, %v", h, err)
	}
	data, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), h.Name)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the layer holds more: %v", err)
	}
	return path
}
