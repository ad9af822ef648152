package recipe

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// nobody is the user of our images. Knative's pods must not run as root.
const nobody = "65532:65532"

// WriteImage writes an image with only one binary, as docker save would: one layer, its
// configuration and a manifest.
func WriteImage(file, name, binary string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make a folder for images: %w", err)
	}
	program := "/" + filepath.Base(binary)
	layer := file + ".layer"
	sum, err := writeLayer(layer, program, binary)
	if err != nil {
		return fmt.Errorf("write the layer of %s: %w", name, err)
	}
	if err := writeArchive(file, name, program, layer, sum); err != nil {
		return fmt.Errorf("write the image %s: %w", name, err)
	}
	return os.Remove(layer)
}

// writeLayer writes a layer with one file and returns its digest.
func writeLayer(layer, program, binary string) (string, error) {
	out, err := os.Create(layer)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	w := tar.NewWriter(io.MultiWriter(out, sum))
	err = errors.Join(addFile(w, program[1:], binary, 0o755), w.Close(), out.Close())
	return hex.EncodeToString(sum.Sum(nil)), err
}

func writeArchive(file, name, program, layer, sum string) error {
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{program}, "User": nobody},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	return errors.Join(
		addBytes(w, "config.json", config),
		addBytes(w, "manifest.json", manifest),
		addFile(w, "layer.tar", layer, 0o644),
		w.Close(), out.Close())
}

func addFile(w *tar.Writer, name, file string, mode int64) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

func addBytes(w *tar.Writer, name string, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(data))
	return err
}
