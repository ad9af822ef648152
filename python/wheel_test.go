package python

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The wheel has all files of the package, and a record of each. It is the same each time.
func TestWheel(t *testing.T) {
	name, wheel, err := Wheel()
	if err != nil {
		t.Fatal(err)
	}
	if _, again, err := Wheel(); err != nil || !bytes.Equal(wheel, again) {
		t.Errorf("the second wheel is another one (%v)", err)
	}
	files, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		t.Fatal(err)
	}
	info := strings.TrimSuffix(name, "-py3-none-any.whl") + ".dist-info/"
	record, err := fs.ReadFile(files, info+"RECORD")
	if err != nil {
		t.Fatal(err)
	}
	want, err := filepath.Glob("src/tidemill/*.py")
	if err != nil || len(want) < 5 {
		t.Fatalf("%v, %v", want, err)
	}
	for _, file := range append(want, "src/tidemill/py.typed") {
		inside := strings.TrimPrefix(filepath.ToSlash(file), "src/")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := fs.ReadFile(files, inside); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s is not in the wheel as it is (%v)", inside, err)
		}
	}
	for _, f := range files.File {
		if !slices.ContainsFunc(strings.Split(string(record), "\n"), func(line string) bool { return strings.HasPrefix(line, f.Name+",") }) {
			t.Errorf("%s is not in the record:\n%s", f.Name, record)
		}
	}
	if meta, err := fs.ReadFile(files, info+"METADATA"); err != nil || !strings.Contains(string(meta), "\nName: tidemill\nVersion: ") {
		t.Errorf("%s, %v", meta, err)
	}
}
