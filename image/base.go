package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"tidemill.dev/image/archive"
)

// certificatePath is the path at which programs expect the authorities' certificates.
const certificatePath = "etc/ssl/certs/ca-certificates.crt"

// packages are the Debian packages from which the image takes a few files each.
func packages() []string {
	return []string{"base-files", "ca-certificates", "libc6", "libgcc-s1", "libstdc++6"}
}

// debianLayer returns the lowest layer: the C library and its loader, the authorities'
// certificates, users, and the licence of each package.
func debianLayer(ctx context.Context, cache string) ([]archive.File, []debPackage, error) {
	taken, err := fetch(ctx, cache, packages()...)
	if err != nil {
		return nil, nil, err
	}
	files := ownFiles()
	var authorities []archive.File
	for i := 0; i < len(taken); i++ {
		all, err := taken[i].files(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range all {
			switch what(f) {
			case kept:
				files = append(files, f)
			case authority:
				authorities = append(authorities, f)
			case elsewhere:
				files = append(files, f)
				if taken, err = withPackage(ctx, cache, taken, path.Base(f.Link)); err != nil {
					return nil, nil, err
				}
			}
		}
	}
	slices.SortFunc(taken, func(a, b debPackage) int { return strings.Compare(a.name, b.name) })
	controls, err := describePackages(ctx, taken)
	return slices.Concat(files, controls, []archive.File{archive.Regular(certificatePath, bundleCertificates(authorities))}), taken, err
}

// withPackage adds, once, the package that contains another package's licence.
func withPackage(ctx context.Context, cache string, taken []debPackage, name string) ([]debPackage, error) {
	if slices.ContainsFunc(taken, func(p debPackage) bool { return p.name == name }) {
		return taken, nil
	}
	more, err := fetch(ctx, cache, name)
	return append(taken, more...), err
}

// describePackages lists the packages in the place where scanners for known vulnerabilities look.
func describePackages(ctx context.Context, taken []debPackage) ([]archive.File, error) {
	var files []archive.File
	for _, p := range taken {
		control, err := command(ctx, "", "dpkg-deb", "--field", p.path)
		if err != nil {
			return nil, fmt.Errorf("read what %s is: %w", p.path, err)
		}
		files = append(files, archive.Regular("var/lib/dpkg/status.d/"+p.name, control))
	}
	return files, nil
}

// ownFiles are the files that are in no package. As on every Debian, /lib and similar folders are
// links to folders below /usr.
func ownFiles() []archive.File {
	return []archive.File{
		archive.Link("lib", "usr/lib"), archive.Link("lib64", "usr/lib64"), archive.Folder("usr/lib64"),
		archive.Regular("etc/passwd", fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\ntidemill:x:%d:%d:tidemill:/tmp:/sbin/nologin\n", imageUser, imageUser)),
		archive.Regular("etc/group", fmt.Appendf(nil, "root:x:0:\ntidemill:x:%d:\n", imageUser)),
		archive.Regular("etc/nsswitch.conf", []byte("hosts: files dns\n")),
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
}

// fileUse says how the image uses a package's file.
type fileUse int

const (
	left fileUse = iota
	kept
	authority // a certificate that goes into the bundle
	elsewhere // a folder of licences that belongs to another package
)

// libraries are the libraries that ONNX Runtime and tidemill are linked against, and the
// dependencies of these.
func libraries() []string {
	return []string{"ld-linux-*.so.*", "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6*"}
}

func what(f archive.File) fileUse {
	dir, name := path.Split(f.Path)
	switch {
	case strings.HasPrefix(dir, "usr/lib") && !strings.Contains(dir, "/gconv"):
		if f.Path == "usr/lib/os-release" || isLibrary(name) {
			return kept
		}
	case f.Path == "etc/os-release", dir == "usr/share/common-licenses/", isLicence(f.Path):
		return kept
	case dir == "usr/share/doc/" && f.Mode.Type() == fs.ModeSymlink:
		return elsewhere
	case strings.HasPrefix(dir, "usr/share/ca-certificates/") && path.Ext(name) == ".crt":
		return authority
	}
	return left
}

func isLicence(name string) bool {
	ok, err := path.Match("usr/share/doc/*/copyright", name)
	return ok && err == nil
}

func isLibrary(name string) bool {
	return slices.ContainsFunc(libraries(), func(l string) bool {
		ok, err := path.Match(l, name)
		return ok && err == nil
	})
}

// bundleCertificates returns all certificates in one file, as programs expect them.
func bundleCertificates(authorities []archive.File) []byte {
	slices.SortFunc(authorities, func(a, b archive.File) int { return strings.Compare(a.Path, b.Path) })
	var all bytes.Buffer
	for _, f := range authorities {
		all.Write(bytes.TrimSpace(f.Data))
		all.WriteByte('\n')
	}
	return all.Bytes()
}

// files returns all files of the package, without folders, at their paths in a merged /usr.
func (p debPackage) files(ctx context.Context) ([]archive.File, error) {
	raw, err := command(ctx, "", "dpkg-deb", "--fsys-tarfile", p.path)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", p.path, err)
	}
	var all []archive.File
	for in := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", p.path, err)
		}
		name := mergedPath(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			all = append(all, archive.Link(name, h.Linkname))
		case tar.TypeReg:
			data, err := io.ReadAll(in)
			if err != nil {
				return nil, fmt.Errorf("unpack %s of %s: %w", h.Name, p.path, err)
			}
			all = append(all, archive.File{Path: name, Mode: fs.FileMode(h.Mode).Perm(), Data: data})
		}
	}
}

// mergedPath returns the path of a package's file when /lib is a link to /usr/lib.
func mergedPath(name string) string {
	name = path.Clean(strings.TrimPrefix(name, "./"))
	first, _, _ := strings.Cut(name, "/")
	if slices.Contains([]string{"bin", "lib", "lib64", "sbin"}, first) {
		return "usr/" + name
	}
	return name
}
