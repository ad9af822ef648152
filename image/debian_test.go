package main

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/image/archive"
)

func TestWhatAptOffers(t *testing.T) {
	const said = `'http://deb.debian.org/debian/pool/main/g/gcc-12/libstdc%2b%2b6_12.2.0-14%2bdeb12u1_amd64.deb' libstdc++6_12.2.0-14+deb12u1_amd64.deb 612604 SHA256:5cd3
'http://deb.debian.org/x' login_1%3a4.13_amd64.deb 7 SHA256:ab
`
	got, err := parseOffers(said)
	want := []offeredPackage{{"libstdc++6", "12.2.0-14+deb12u1", "libstdc++6_12.2.0-14+deb12u1_amd64.deb", "5cd3"}, {"login", "1:4.13", "login_1%3a4.13_amd64.deb", "ab"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"E: no", "'u' a_1_amd64.deb 7 MD5Sum:ab", "'u' a.deb 7 SHA256:ab", "u a_1_all.deb 7 SHA256:ab"} {
		if got, err := parseOffers(bad); err == nil || !strings.Contains(err.Error(), "apt") {
			t.Errorf("%q became %v, %v", bad, got, err)
		}
	}
}

func TestWhereAFileOfAPackageBelongs(t *testing.T) {
	for name, want := range map[string]string{
		"./lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6",
		"./lib64/ld-linux-x86-64.so.2":     "usr/lib64/ld-linux-x86-64.so.2",
		"./usr/lib/os-release":             "usr/lib/os-release",
		"etc/os-release":                   "etc/os-release",
		"./library/x":                      "library/x",
	} {
		if got := mergedPath(name); got != want {
			t.Errorf("%s became %s", name, got)
		}
	}
}

func TestWhatIsTakenOfAPackage(t *testing.T) {
	for name, want := range map[string]fileUse{
		"usr/lib/x86_64-linux-gnu/libc.so.6":                      kept,
		"usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1":         kept,
		"usr/lib64/ld-linux-x86-64.so.2":                          kept,
		"usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30":            kept,
		"usr/lib/x86_64-linux-gnu/gconv/UTF-16.so":                left,
		"usr/lib/x86_64-linux-gnu/libnss_dns.so.2":                left,
		"usr/share/gcc/python/libstdcxx/v6/xmethods.py":           left,
		"usr/share/gdb/auto-load/usr/lib/libstdc++.so.6.0.30-g.p": left,
		"usr/lib/os-release":                                      kept,
		"etc/debian_version":                                      left,
		"usr/share/common-licenses/LGPL-2.1":                      kept,
		"usr/share/doc/libc6/copyright":                           kept,
		"usr/share/doc/libc6/README.gz":                           left,
		"usr/share/doc/a/examples/copyright":                      left,
		"usr/share/ca-certificates/mozilla/ACCVRAIZ1.crt":         authority,
	} {
		if got := what(archive.Regular(name, nil)); got != want {
			t.Errorf("%s: %d, not %d", name, got, want)
		}
	}
	if got := what(archive.Link("usr/share/doc/libgcc-s1", "gcc-12-base")); got != elsewhere {
		t.Errorf("a folder of licences that is another's: %d", got)
	}
}

func TestCertificatesAreOneFile(t *testing.T) {
	got := bundleCertificates([]archive.File{archive.Regular("b", []byte("B\n\n")), archive.Regular("a", []byte("A"))})
	if string(got) != "A\nB\n" {
		t.Errorf("%q", got)
	}
}

// The user as which the image runs can write to nothing in the image except /tmp.
func TestOurOwnFilesOfTheBase(t *testing.T) {
	for _, f := range ownFiles() {
		if f.Owner != 0 {
			t.Errorf("%s belongs to %d", f.Path, f.Owner)
		}
		if others := f.Mode.Perm() & 0o022; others != 0 && f.Mode.Type() != fs.ModeSymlink && f.Path != "tmp" {
			t.Errorf("%s may be written to by others: %s", f.Path, f.Mode)
		}
	}
}
