package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tidemill.dev/image/archive"
)

// The files of a release are the same each time, and sha256sum accepts their sums.
func TestRelease(t *testing.T) {
	pack := func() []byte {
		data, err := compressed(archive.Regular("README.md", []byte("read")), archive.Program("tidemill", []byte("run")))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	data := pack()
	if !bytes.Equal(data, pack()) {
		t.Error("the same files give another archive")
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[h.Name] = h.Mode
	}
	if len(modes) != 3 || modes["tidemill/"] != 0o755 || modes["tidemill/tidemill"] != 0o755 || modes["tidemill/README.md"] != 0o644 {
		t.Errorf("the archive has %v", modes)
	}
	folder := filepath.Join(t.TempDir(), "release")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "old.tar.gz"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := writeRelease(folder, map[string][]byte{"b.tar.gz": data, "a.json": []byte("{}")}, &said); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	check.Dir = folder
	if got, err := check.CombinedOutput(); err != nil || string(got) != "a.json: OK\nb.tar.gz: OK\n" {
		t.Errorf("%v: %s", err, got)
	}
	if _, err := os.Stat(filepath.Join(folder, "old.tar.gz")); !os.IsNotExist(err) {
		t.Errorf("a file of the release before is still there: %v", err)
	}
}
