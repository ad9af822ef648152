package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Hostile bytes are problems, each on one line of bounded length; what is
// accepted is sound.
func FuzzParse(f *testing.F) {
	seed(f, Examples(), "*.yaml")
	seed(f, os.DirFS("testdata"), "*.yaml")
	for _, s := range []string{"[[[[", "{{{{", "? ? ?", "- - -", "!!", "%TAG ! x:y\n---\n", "&a *a", "a: |9\n x", "\xef\xbb\xbfa: 1", "\"\\U0010FFFF\"", "? |\n a\n: b", "---\n---\n...", "<<: *x", "0: {", "a: !<tag:yaml.org,2002:int> 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("f", data)
		if err == nil {
			checkSound(t, cfg)
			return
		}
		var all *Error
		if cfg != nil || !errors.As(err, &all) || len(all.Problems) == 0 || len(all.Problems) > maxProblems+1 {
			t.Fatalf("%+v and %v", cfg, err)
		}
		for _, p := range all.Problems {
			checkProblem(t, p)
		}
	})
}

func seed(f *testing.F, files fs.FS, pattern string) {
	f.Helper()
	names, err := fs.Glob(files, pattern)
	if err != nil || len(names) == 0 {
		f.Fatalf("no seeds %s, %v", pattern, err)
	}
	for _, name := range names {
		data, err := fs.ReadFile(files, filepath.ToSlash(name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func checkProblem(t *testing.T, p Problem) {
	t.Helper()
	text := p.Error()
	if p.File != "f" || p.Line < 1 || p.Message == "" || len(text) > 8<<10 {
		t.Errorf("a problem of %d letters: %+v", len(text), p)
	}
	if _, found := controlIn(text); found || strings.ContainsAny(text, "\n\t") || !utf8.ValidString(text) {
		t.Errorf("a problem that may harm a terminal: %q", text)
	}
}

func checkSound(t *testing.T, cfg *Config) {
	t.Helper()
	if _, err := cfg.Names(); err != nil || len(cfg.Hash()) != 26 {
		t.Errorf("names %v, hash %s", err, cfg.Hash())
	}
	for _, s := range cfg.Streams {
		expires := s.Retention != Forever
		if s.Partitions < 1 || s.Partitions > maxPartitions || mustNotExpire(s.Name) && expires || expires && s.Retention < minRetention {
			t.Errorf("stream %+v", s)
		}
		if d := s.Dedupe; d != 0 && (d < minDedupe || d > maxDedupe || !takesOutside(s)) {
			t.Errorf("stream %+v", s)
		}
		for _, typ := range s.Types {
			if cfg.StreamFor(typ) != s.Name {
				t.Errorf("type %q lives on %s, not %s", typ, cfg.StreamFor(typ), s.Name)
			}
		}
	}
}
