package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tidemill.dev/image/archive"
)

// systems are the operating systems and processors of a release.
func systems() []string {
	return []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"}
}

// release writes an archive of tidemill for each system, an SBOM, and the sums of all files. A commit
// always gives the same files. No service is asked, except for modules that this machine does not have.
func release(ctx context.Context, folder string, stdout io.Writer) error {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	var (
		parts []part
		made  provenance
		files = map[string][]byte{}
	)
	for _, system := range systems() {
		built := filepath.Join("bin", "release-build", system) // permanent, so that an unchanged program is not linked again
		os, processor, _ := strings.Cut(system, "_")
		program, err := build(ctx, built, "tidemill", "GOOS="+os, "GOARCH="+processor)
		if err != nil {
			return fmt.Errorf("for %s: %w", system, err)
		}
		info, err := buildinfo.ReadFile(filepath.Join(built, "tidemill"))
		if err != nil {
			return fmt.Errorf("read what tidemill for %s was built from: %w", system, err)
		}
		parts = append(parts, moduleParts(info)...)
		if made, err = provenanceOf(filepath.Join(built, "tidemill")); err != nil {
			return err
		}
		packed, err := compressed(archive.Regular("README.md", readme), archive.Program("tidemill", program))
		if err != nil {
			return err
		}
		files[fmt.Sprintf("tidemill_%s_%s.tar.gz", made.version, system)] = packed
	}
	if files["tidemill_"+made.version+".cdx.json"], err = billOf("application", made, parts).encode(); err != nil {
		return err
	}
	return writeRelease(folder, files, stdout)
}

// compressed returns an archive with one folder.
func compressed(files ...archive.File) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for i := range files {
		files[i].Path = "tidemill/" + files[i].Path
	}
	if err := archive.WriteTar(z, files); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}

// writeRelease writes the files, and a list of their sums that sha256sum -c reads. Files of an earlier
// release are removed.
func writeRelease(folder string, files map[string][]byte, stdout io.Writer) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var sums []string
	for name, data := range files {
		sums = append(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name))
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			return err
		}
	}
	slices.SortFunc(sums, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	list := strings.Join(sums, "")
	if err := os.WriteFile(filepath.Join(folder, "SHA256SUMS"), []byte(list), 0o644); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "%s has:\n%s", folder, list)
	return err
}
