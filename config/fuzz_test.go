package config

import (
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/internal/cron"
)

// Hostile bytes are problems, each on one line of bounded length; what is
// accepted is sound.
func FuzzParse(f *testing.F) {
	seed(f, Examples(), "*.yaml")
	seed(f, os.DirFS("testdata"), "*.yaml")
	for _, s := range []string{"[[[[", "{{{{", "? ? ?", "- - -", "!!", "%TAG ! x:y\n---\n", "&a *a", "a: |9\n x", "\xef\xbb\xbfa: 1", "\"\\U0010FFFF\"", "? |\n a\n: b", "---\n---\n...", "<<: *x", "0: {", "a: !<tag:yaml.org,2002:int> 1",
		"version: 1\ntriggers: {a: {when: {type: t, where: \"a IN ('b', 'c') AND NOT EXISTS d\"}, to: {url: 'https://a.example:8443/b?c=%20', bearerFile: t}, delivery: {rate: 3/h, backoff: {cap: 3ms}}}}",
		"version: 1\nschedules: {a: {cron: '*/5 1-3,7 L * MON-FRI', timeZone: America/New_York, missed: all, keys: [a, b], spread: 90s}}",
	} {
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

func checkTrigger(t *testing.T, cfg *Config, tr Trigger) {
	t.Helper()
	to, y := tr.To, tr.Delivery
	named := 0
	for _, s := range []string{to.URL, to.Service, to.Function} {
		if s != "" {
			named++
		}
	}
	if tidemill.CheckLabel(tr.Name) != nil || len(tr.When) == 0 || named != 1 || to.Function != "" && len(to.Credentials.Files()) > 0 {
		t.Errorf("trigger %+v", tr)
	}
	if y.Attempts < 1 || y.Timeout < minTimeout || y.Concurrency < 1 || y.Rate < 0 || y.Backoff.First < minWait || y.Backoff.First > y.Backoff.Cap || y.Backoff.Cap > maxWait {
		t.Errorf("trigger %s is delivered %+v", tr.Name, y)
	}
	if u, err := url.Parse(to.URL); err != nil || u.User != nil || u.Fragment != "" || to.URL != "" && u.Hostname() == "" {
		t.Errorf("url %q, %v", to.URL, err)
	} else if to.URL != "" {
		if _, err := http.NewRequest(http.MethodPost, to.URL, nil); err != nil {
			t.Error(err)
		}
	}
	streams := cfg.StreamsOf(tr)
	if len(streams) == 0 {
		t.Errorf("trigger %+v reads nothing", tr)
	}
	for _, s := range streams {
		_, known := cfg.Stream(s)
		if !known || !slices.ContainsFunc(cfg.Parked(), func(p Stream) bool { return p.Name == tidemill.Parked(s) }) {
			t.Errorf("trigger %+v reads %s", tr, s)
		}
	}
}

func checkSchedule(t *testing.T, s Schedule) {
	t.Helper()
	_, err := cron.Parse(s.Cron)
	if _, zone := time.LoadLocation(s.TimeZone); tidemill.CheckLabel(s.Name) != nil || err != nil || zone != nil || s.Missed == "" ||
		s.Spread != 0 && (s.Spread > maxSpread || len(s.Keys) == 0) || !slices.IsSorted(s.Keys) || slices.Contains(s.Keys, "") {
		t.Errorf("schedule %+v, %v, %v", s, err, zone)
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
	for _, tr := range cfg.Triggers {
		checkTrigger(t, cfg, tr)
	}
	for _, s := range cfg.Schedules {
		checkSchedule(t, s)
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
