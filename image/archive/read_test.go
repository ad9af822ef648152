package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/image/archive"
)

func octal(n int64) string { return strconv.FormatInt(n, 8) }
func decimal(n int) string { return strconv.Itoa(n) }

// Read refuses an image in which a file is changed or missing.
func TestADamagedImageIsNotRead(t *testing.T) {
	whole, _ := write(t, sample())
	files := names(t, whole)
	if len(files) != 7 { // two layers, the config, the manifest, two tables and the layout
		t.Fatalf("%d files: %v", len(files), files)
	}
	for _, name := range files {
		if name == "oci-layout" {
			continue // does not describe this image
		}
		for what, change := range map[string]func([]byte) []byte{
			"changed": func(data []byte) []byte { data[len(data)/2] ^= 1; return data },
			"cut off": func(data []byte) []byte { return data[:len(data)-1] },
			"missing": func([]byte) []byte { return nil },
		} {
			if _, err := archive.Read(bytes.NewReader(withEntry(t, whole, name, change))); err == nil {
				t.Errorf("nothing said where %s is %s", name, what)
			}
		}
	}
	if _, err := archive.Read(bytes.NewReader(whole[:len(whole)/2])); err == nil {
		t.Error("nothing said of half a file")
	}
}

func TestTablesThatMeanDifferentThings(t *testing.T) {
	whole, _ := write(t, sample())
	other := withEntry(t, whole, "manifest.json", func(data []byte) []byte { return bytes.Replace(data, []byte("thing:v1"), []byte("thing:v2"), 1) })
	if _, err := archive.Read(bytes.NewReader(other)); err == nil || !strings.Contains(err.Error(), "manifest.json says") {
		t.Errorf("error %v", err)
	}
}

func names(t *testing.T, whole []byte) (all []string) {
	t.Helper()
	each(t, whole, func(h *tar.Header, _ []byte) { all = append(all, h.Name) })
	return all
}

// withEntry returns the tar file with one of its entries changed, or without the entry if change
// returns nil.
func withEntry(t *testing.T, whole []byte, name string, change func([]byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	each(t, whole, func(h *tar.Header, data []byte) {
		if h.Name == name {
			if data = change(data); data == nil {
				return
			}
		}
		h.Size = int64(len(data))
		err := w.WriteHeader(h)
		_, writeErr := w.Write(data)
		if err := errors.Join(err, writeErr); err != nil {
			t.Fatal(err)
		}
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func each(t *testing.T, whole []byte, do func(*tar.Header, []byte)) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(whole)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		do(h, data)
	}
}
