package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// The SBOM names every part once, by the names that scanners know, and is the same each time.
func TestBill(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("..", ".ci", "onnxruntime-install"))
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := runtimePart(string(script))
	if err != nil {
		t.Fatal(err)
	}
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
		{Path: "github.com/a/b", Version: "v1.2.3+incompatible", Sum: "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
		{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/new", Version: "v1.0.1"}},
	}}
	made := provenance{version: "v1.2.3", created: time.Unix(0, 0).UTC()}
	write := func() string {
		parts := append(moduleParts(info), runtime, packagePart(debPackage{name: "libstdc++6", version: "12.2.0-14+deb12u1"}))
		text, err := json.Marshal(billOf("container", made, append(parts, moduleParts(info)...)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	got := write()
	for _, want := range []string{`"bomFormat":"CycloneDX"`, `"specVersion":"1.6"`, `"purl":"pkg:golang/stdlib@1.26.8"`, `pkg:golang/github.com/a/b@v1.2.3%2Bincompatible`,
		`"content":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`, `pkg:golang/example.com/new@v1.0.1`,
		`pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1`, `"purl":"pkg:pypi/onnxruntime@1.`, `"timestamp":"1970-01-01T00:00:00Z"`} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %s:\n%s", want, got)
		}
	}
	if n := strings.Count(got, `"purl":"pkg:golang/github.com/a/b@`); n != 1 {
		t.Errorf("a module of two programs is named %d times", n)
	}
	if again := write(); again != got {
		t.Errorf("it is another each time:\n%s\n%s", got, again)
	}
	if strings.Contains(got, "example.com/old") {
		t.Error("it names a module that was replaced")
	}
	if _, err := runtimePart("nothing"); err == nil {
		t.Error("a version that is not there was read")
	}
}
