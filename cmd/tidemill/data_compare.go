package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// compare says what a put would change.
func (w *putting) compare(ctx context.Context, s *session) error {
	left := make(map[string]*api.File, len(w.files))
	for i := range w.files {
		left[w.files[i].Path] = &w.files[i]
	}
	var would []api.Difference
	at := orMain(w.branch)
	_, err := w.g.Files(ctx, w.asked.Dataset, at, "", func(was api.File) error {
		is := left[was.Path]
		delete(left, was.Path)
		switch {
		case is == nil && w.replace:
			would = append(would, api.Difference{Path: was.Path, Was: &was})
		case is != nil && (is.Digest != was.Digest || is.Executable != was.Executable):
			would = append(would, api.Difference{Path: was.Path, Was: &was, Is: is})
		}
		return nil
	})
	if err != nil && remote.Status(err) != http.StatusNotFound { // a branch that is not there is made
		return err
	}
	for i := range w.files {
		if f := &w.files[i]; left[f.Path] != nil {
			would = append(would, api.Difference{Path: f.Path, Is: f})
		}
	}
	w.shown.stop()
	slices.SortFunc(would, func(a, b api.Difference) int { return strings.Compare(a.Path, b.Path) })
	show := lineShower(s.stdout, w.output, differenceText)
	for _, d := range would {
		if err := show(d); err != nil {
			return err
		}
	}
	if w.output != "json" {
		fmt.Fprintf(s.stderr, "%s would change on %s of %s; without --dry-run they do\n", count(len(would), "file"), harmless(at), harmless(w.asked.Dataset))
	}
	return nil
}

func orMain(branch string) string { return first(branch, "main") }
