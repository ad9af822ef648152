package python

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io/fs"
	"regexp"
	"time"
)

//go:embed pyproject.toml src/tidemill/*.py src/tidemill/py.typed
var source embed.FS

// Wheel returns the name and the bytes of the package's wheel. The same source makes the same
// bytes.
func Wheel() (name string, wheel []byte, err error) {
	version, python, err := project()
	if err != nil {
		return "", nil, fmt.Errorf("make the wheel of the Python package: %w", err)
	}
	w := &writer{info: "tidemill-" + version + ".dist-info/"}
	w.zip = zip.NewWriter(&w.bytes)
	w.modules()
	w.add(w.info+"METADATA", []byte("Metadata-Version: 2.1\nName: tidemill\nVersion: "+version+"\nRequires-Python: "+python+"\n"))
	w.add(w.info+"WHEEL", []byte("Wheel-Version: 1.0\nGenerator: tidemill\nRoot-Is-Purelib: true\nTag: py3-none-any\n"))
	if err := w.close(); err != nil {
		return "", nil, fmt.Errorf("make the wheel of the Python package: %w", err)
	}
	return "tidemill-" + version + "-py3-none-any.whl", w.bytes.Bytes(), nil
}

var (
	versionLine = regexp.MustCompile(`(?m)^version = "([^"]+)"$`)
	pythonLine  = regexp.MustCompile(`(?m)^requires-python = "([^"]+)"$`)
)

// project reads the version of the package, and the versions of Python that it needs.
func project() (version, python string, err error) {
	text, err := source.ReadFile("pyproject.toml")
	if err != nil {
		return "", "", err
	}
	v, p := versionLine.FindSubmatch(text), pythonLine.FindSubmatch(text)
	if v == nil || p == nil {
		return "", "", fmt.Errorf("pyproject.toml has no version or no requires-python")
	}
	return string(v[1]), string(p[1]), nil
}

// writer writes the files of a wheel, and remembers the first error.
type writer struct {
	zip    *zip.Writer
	bytes  bytes.Buffer
	info   string // folder of the metadata
	record bytes.Buffer
	err    error
}

func (w *writer) modules() {
	of, err := fs.Sub(source, "src")
	if err == nil {
		err = fs.WalkDir(of, "tidemill", func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := fs.ReadFile(of, name)
			w.add(name, data)
			return err
		})
	}
	if w.err == nil {
		w.err = err
	}
}

// add adds a file. It is not compressed, because other versions of Go would compress it to
// other bytes.
func (w *writer) add(name string, data []byte) {
	sum := sha256.Sum256(data)
	fmt.Fprintf(&w.record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	w.write(name, data)
}

func (w *writer) write(name string, data []byte) {
	if w.err != nil {
		return
	}
	size := uint64(len(data))
	file := &zip.FileHeader{Name: name, Method: zip.Store, Modified: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		CRC32: crc32.ChecksumIEEE(data), CompressedSize64: size, UncompressedSize64: size}
	file.SetMode(0o644)
	to, err := w.zip.CreateRaw(file) // CreateHeader would write the sizes after the data, which uv does not read
	if err == nil {
		_, err = to.Write(data)
	}
	w.err = err
}

// close adds the list of all files, which is not in itself with a sum.
func (w *writer) close() error {
	w.write(w.info+"RECORD", fmt.Appendf(w.record.Bytes(), "%sRECORD,,\n", w.info))
	if w.err != nil {
		return w.err
	}
	return w.zip.Close()
}
