package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/image/archive"
)

func TestWhatAnImageSaysItIs(t *testing.T) {
	made, err := provenanceFrom("v1.2.3", map[string]string{"vcs.revision": "abc", "vcs.time": "2026-03-01T12:00:00Z", "vcs.modified": "true"})
	if want := (provenance{"v1.2.3+dirty", "abc", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}); err != nil || made != want {
		t.Errorf("%+v, %v", made, err)
	}
	made, err = provenanceFrom("", nil)
	if want := (provenance{"(devel)", "", time.Unix(0, 0).UTC()}); err != nil || made != want {
		t.Errorf("%+v, %v", made, err)
	}
	if _, err := provenanceFrom("v1", map[string]string{"vcs.time": "yesterday"}); err == nil {
		t.Error("a time that is none was taken")
	}
	c := runConfig(made, []debPackage{{"libc6", "2.36-9", ""}, {"libgcc-s1", "12.2", ""}})
	if c.User != "65532:65532" || c.Labels["dev.tidemill.packages"] != "libc6=2.36-9 libgcc-s1=12.2" || c.Labels["org.opencontainers.image.version"] != "(devel)" {
		t.Errorf("%+v", c)
	}
}

// The Dockerfile's image has our image's run configuration and our layers.
func TestTheDockerfileMeansTheSame(t *testing.T) {
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	build, final, two := strings.Cut(string(data), "FROM scratch\n")
	if !two {
		t.Fatal("there are not two stages, the last of them from nothing")
	}
	c := runConfig(provenance{}, nil)
	entry, err := json.Marshal(c.Entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, layer := range []string{layerBase, layerRuntime, layerPrograms} {
		want = append(want, "COPY --from=build /image/"+layer+"/ /")
	}
	want = append(want, "ENV "+strings.Join(c.Env, " "), "USER "+c.User, "WORKDIR "+c.WorkingDir, "ENTRYPOINT "+string(entry))
	if got := strings.Split(strings.TrimSpace(final), "\n"); !slices.Equal(got, want) {
		t.Errorf("it ends with\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(build, "\nRUN go run -C image . -folder /image\n") {
		t.Errorf("it gathers its files in another way:\n%s", build)
	}
	if from := "FROM golang:" + goVersion(t) + "."; !strings.Contains(build, "\n"+from) {
		t.Errorf("it does not build with go.mod's version of Go: %s", from)
	}
	if !regexp.MustCompile(`\nFROM golang:\S+@sha256:[0-9a-f]{64} AS build\n`).MatchString(build) {
		t.Error("a registry may send another image than before, because no digest is given")
	}
}

// The image's programs are built with the same tags and linker flags as in make build.
func TestProgramsAreBuiltAsMakeBuildDoes(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	want := "CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -gcflags=all=-dwarf=false -gcflags='tidemill.dev/internal/gateway/dashboard=-dwarf=false -l' -ldflags='-s -w' -o bin/tidemill ./cmd/tidemill;"
	if !strings.Contains(string(data), want) {
		t.Errorf("make build does not say %q", want)
	}
	got := slices.DeleteFunc(buildCommand("bin", "tidemill"), func(arg string) bool { return arg == "-buildvcs=auto" })
	if line := strings.Join(got, " "); line != "go build -trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false -gcflags=tidemill.dev/internal/gateway/dashboard=-dwarf=false -l -ldflags=-s -w -o bin/tidemill ./cmd/tidemill" {
		t.Errorf("the image's is built by %q", line)
	}
}

func goVersion(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if version, is := strings.CutPrefix(line, "go "); is {
			return strings.TrimSuffix(strings.TrimSpace(version), ".0")
		}
	}
	t.Fatal("go.mod says no version of Go")
	return ""
}

func TestLayersAsFolders(t *testing.T) {
	dir := t.TempDir()
	layers := []archive.Layer{{Note: "base", Files: append(ownFiles(), archive.Program("usr/bin/x", []byte("x")))}, {Note: "top", Files: []archive.File{archive.Regular("y", nil)}}}
	if err := unpackLayers(dir, layers); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		"base/tmp":       os.ModeDir | os.ModeSticky | 0o777,
		"base/usr/bin/x": 0o755,
		"top/y":          0o644,
	} {
		if info, err := os.Lstat(filepath.Join(dir, path)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "base", "lib")); err != nil || to != "usr/lib" {
		t.Errorf("lib leads to %q, %v", to, err)
	}
}

// A failed save leaves no file, and does not change an existing image.
func TestAnImageThatCannotBeSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, []byte("the one before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := writeImage(path, archive.Image{Name: "without a tag"}); err == nil {
		t.Fatal("it was saved")
	}
	left, err := os.ReadDir(filepath.Dir(path))
	data, readErr := os.ReadFile(path)
	if err != nil || readErr != nil || len(left) != 1 || string(data) != "the one before" {
		t.Errorf("%v, %q, %v, %v", left, data, err, readErr)
	}
}
