package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"tidemill.dev/image/archive"
)

func sample() archive.Image {
	return archive.Image{
		Name: "dev.local:5000/team/thing:v1", Architecture: "arm64", Created: time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600)),
		Config: v1.Config{User: "65532:65532", Entrypoint: []string{"/thing"}, Env: []string{"A=b"}, WorkingDir: "/", Labels: map[string]string{"b": "2", "a": "1"}},
		Layers: []archive.Layer{
			{Note: "base", Files: []archive.File{archive.Link("lib", "usr/lib"), archive.Regular("usr/lib/libc.so", []byte("c")), {Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}}},
			{Note: "programs", Files: []archive.File{archive.Program("thing", bytes.Repeat([]byte("thing"), 1000)), {Path: "home/me", Mode: fs.ModeDir | 0o700, Owner: 65532}}},
		},
	}
}

func write(t *testing.T, im archive.Image) (data []byte, digest string) {
	t.Helper()
	var out bytes.Buffer
	digest, err := archive.Write(&out, im)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), digest
}

func TestAnImageIsReadAsItWasWritten(t *testing.T) {
	for _, plain := range []bool{false, true} {
		im := sample()
		im.Plain = plain
		data, digest := write(t, im)
		got, err := archive.Read(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != im.Name || got.Digest != digest || got.Architecture != "arm64" || !got.Created.Equal(im.Created) || !reflect.DeepEqual(got.Config, im.Config) {
			t.Errorf("read %+v", got)
		}
		if len(got.Layers) != 2 || got.Layers[0].Note != "base" || got.Layers[1].Note != "programs" {
			t.Fatalf("%d layers", len(got.Layers))
		}
		if same := got.Layers[1].Digest == got.Layers[1].DiffID; same != plain {
			t.Errorf("a layer is as it is when unpacked: %v, with plain %v", same, plain)
		}
	}
}

// Other programs see the entries of a layer.
func TestWhatALayerHolds(t *testing.T) {
	data, _ := write(t, sample())
	c, err := archive.Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"l lib 0777 0 >usr/lib", "d tmp/ 01777 0", "d usr/ 0755 0", "d usr/lib/ 0755 0", "f usr/lib/libc.so 0644 0 c"},
		{"d home/ 0755 0", "d home/me/ 0700 65532", "f thing 0755 0 " + strings.Repeat("thing", 1000)},
	}
	for i, l := range c.Layers {
		if got := entries(t, l.Tar); !slices.Equal(got, want[i]) {
			t.Errorf("the layer %s holds\n%.200q, not\n%.200q", l.Note, got, want[i])
		}
	}
}

func entries(t *testing.T, raw []byte) (all []string) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(time.Unix(0, 0)) || h.Uid != h.Gid || h.Uname != "" {
			t.Errorf("%s says when or by whom it was written: %+v", h.Name, h)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		line := string(map[byte]byte{tar.TypeReg: 'f', tar.TypeDir: 'd', tar.TypeSymlink: 'l'}[h.Typeflag]) + " " + h.Name + " 0" + octal(h.Mode) + " " + decimal(h.Uid)
		if h.Linkname != "" {
			line += " >" + h.Linkname
		}
		if len(data) > 0 {
			line += " " + string(data)
		}
		all = append(all, line)
	}
}

func TestTheSameImageIsTheSameBytes(t *testing.T) {
	first, digest := write(t, sample())
	shuffled := sample()
	slices.Reverse(shuffled.Layers[0].Files)
	second, again := write(t, shuffled)
	if digest != again || !bytes.Equal(first, second) {
		t.Errorf("%s and %s", digest, again)
	}
	other := sample()
	other.Layers[1].Files[0].Data = []byte("another")
	third, changed := write(t, other)
	if changed == digest {
		t.Error("another program has the same digest")
	}
	was, is := layers(t, first), layers(t, third)
	if was[0] != is[0] || was[1] == is[1] {
		t.Errorf("the layers %v became %v where only the last one has changed", was, is)
	}
}

func layers(t *testing.T, data []byte) (digests []string) {
	t.Helper()
	c, err := archive.Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range c.Layers {
		digests = append(digests, l.Digest)
	}
	return digests
}

func TestWhatCannotBeWritten(t *testing.T) {
	for want, change := range map[string]func(*archive.Image){
		"no image's name with a tag":   func(im *archive.Image) { im.Name = "dev.local:5000/thing" },
		"no path in an image":          func(im *archive.Image) { im.Layers[0].Files[0].Path = "/lib" },
		`"../lib" is no path`:          func(im *archive.Image) { im.Layers[0].Files[0].Path = "../lib" },
		"tmp is twice in a layer":      func(im *archive.Image) { im.Layers[0].Files[0].Path = "tmp" },
		"which is not a folder":        func(im *archive.Image) { im.Layers[0].Files[1].Path = "lib/libc.so" },
		"neither a file, a folder nor": func(im *archive.Image) { im.Layers[0].Files[1].Mode = fs.ModeNamedPipe },
	} {
		im := sample()
		change(&im)
		var out bytes.Buffer
		if _, err := archive.Write(&out, im); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("error %v and %d bytes, not %q", err, out.Len(), want)
		}
	}
}
