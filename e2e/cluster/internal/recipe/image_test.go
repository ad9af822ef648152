package recipe

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteImage(t *testing.T) {
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "hello"), filepath.Join(dir, "images", "hello.tar")
	if err := os.WriteFile(binary, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteImage(file, "dev.local/hello:v1", binary); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	unmarshal(t, files["manifest.json"], &manifest)
	if len(manifest) != 1 || manifest[0].RepoTags[0] != "dev.local/hello:v1" {
		t.Fatalf("the manifest is %+v", manifest)
	}
	layer := files[manifest[0].Layers[0]]
	if got := untar(t, layer)["hello"]; string(got) != "a program" {
		t.Errorf("the layer has %q", got)
	}
	var config struct {
		OS     string
		Config struct {
			Entrypoint []string
			User       string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	unmarshal(t, files[manifest[0].Config], &config)
	sum := sha256.Sum256(layer)
	if want := "sha256:" + hex.EncodeToString(sum[:]); len(config.Rootfs.DiffIDs) != 1 || config.Rootfs.DiffIDs[0] != want {
		t.Errorf("the layer's digest is %v, want %s", config.Rootfs.DiffIDs, want)
	}
	if config.Config.Entrypoint[0] != "/hello" || config.Config.User != nobody || config.OS != "linux" {
		t.Errorf("it runs %+v", config)
	}
	if left, _ := filepath.Glob(file + ".*"); left != nil {
		t.Errorf("it left %v", left)
	}
}

func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err == nil {
			files[header.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func unmarshal(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
}
