package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// bill is a list of all parts of the image (SBOM) in the format CycloneDX 1.6, which scanners of
// known vulnerabilities read. It has no serial number and no time of the build, so that the same
// parts give the same bytes.
type bill struct {
	Format     string `json:"bomFormat"`
	Version    string `json:"specVersion"`
	Metadata   about  `json:"metadata"`
	Components []part `json:"components"`
}

type about struct {
	Time      string `json:"timestamp"` // time of the commit
	Component part   `json:"component"`
}

// part is a component of CycloneDX.
type part struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// writeBill writes the SBOM of the image's programs, ONNX Runtime and Debian packages.
func writeBill(ctx context.Context, to string) error {
	folder := filepath.Join("bin", "image")
	_, made, err := buildAll(ctx, folder)
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache of downloads: %w", err)
	}
	_, packages, err := debianLayer(ctx, filepath.Join(cache, "tidemill", "debian"))
	if err != nil {
		return err
	}
	script, err := os.ReadFile(filepath.Join(".ci", "onnxruntime-install"))
	if err != nil {
		return fmt.Errorf("read the version of ONNX Runtime: %w", err)
	}
	runtime, err := runtimePart(string(script))
	if err != nil {
		return err
	}
	parts := []part{runtime}
	for _, p := range packages {
		parts = append(parts, packagePart(p))
	}
	for _, p := range programs() {
		info, err := buildinfo.ReadFile(filepath.Join(folder, p.name))
		if err != nil {
			return fmt.Errorf("read what %s was built from: %w", p.name, err)
		}
		parts = append(parts, moduleParts(info)...)
	}
	text, err := billOf("container", made, parts).encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

func (b bill) encode() ([]byte, error) {
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

// billOf returns the SBOM of a container or an application, with each part once.
func billOf(kind string, made provenance, parts []part) bill {
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.Ref, b.Ref) })
	parts = slices.CompactFunc(parts, func(a, b part) bool { return a.Ref == b.Ref })
	self := newPart(kind, "tidemill", made.version, "pkg:generic/tidemill@"+escaped(made.version))
	return bill{Format: "CycloneDX", Version: "1.6", Metadata: about{Time: made.created.Format(time.RFC3339), Component: self}, Components: parts}
}

// escaped returns a version as package URLs have it: a plus would be a space.
func escaped(version string) string { return strings.ReplaceAll(url.PathEscape(version), "+", "%2B") }

func newPart(kind, name, version, purl string) part {
	return part{Type: kind, Ref: purl, Name: name, Version: version, PURL: purl}
}

// moduleParts returns Go's standard library and the modules that are linked into a program.
func moduleParts(info *debug.BuildInfo) []part {
	standard := strings.TrimPrefix(info.GoVersion, "go")
	all := []part{newPart("library", "stdlib", standard, "pkg:golang/stdlib@"+standard)}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		p := newPart("library", m.Path, m.Version, "pkg:golang/"+m.Path+"@"+escaped(m.Version))
		// Go's sum of a module is a SHA-256 over the sums of its files.
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
			p.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
		}
		all = append(all, p)
	}
	return all
}

func packagePart(p debPackage) part {
	return newPart("library", p.name, p.version, "pkg:deb/debian/"+escaped(p.name)+"@"+escaped(p.version))
}

var runtimeVersion = regexp.MustCompile(`(?m)^version=([0-9.]+)$`) // read only

// runtimePart reads the version of ONNX Runtime from the script that fetches it.
func runtimePart(script string) (part, error) {
	found := runtimeVersion.FindStringSubmatch(script)
	if found == nil {
		return part{}, fmt.Errorf("read the version of ONNX Runtime: .ci/onnxruntime-install has no line version=NUMBER")
	}
	return newPart("library", "onnxruntime", found[1], "pkg:pypi/onnxruntime@"+found[1]), nil
}
