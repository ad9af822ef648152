package client

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"tidemill.dev/api"
)

// A commit without an answer is repeated with the same name and content.
func TestACommitIsSaidAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []string
		answer, _ := inOrder(hungUp, problemHandler(slug(api.Unavailable, http.StatusServiceUnavailable, "its event could not be published")),
			func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				bodies = append(bodies, r.URL.Path+"\n"+string(b))
				_ = json.NewEncoder(w).Encode(api.Committed{Commit: api.Commit{ID: "c"}})
			})
		g := gatewayOf(t, answer)
		done, err := g.Commit(t.Context(), api.CommitAsked{Dataset: "d", Request: "r"}, []api.Change{{File: api.File{Path: "a"}}, {File: api.File{Path: "b"}, Remove: true}})
		if err != nil || done.ID != "c" || len(bodies) != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		lines := strings.Split(strings.TrimSpace(bodies[0]), "\n")
		if len(lines) != 4 || lines[0] != "/base/api/v1/data/commits" || !strings.Contains(lines[1], `"request":"r"`) || !strings.Contains(lines[3], `"remove":true`) {
			t.Errorf("%q", lines)
		}
	})
}

// All pages of a branch show the commit of the first page.
func TestPagesAreOfOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.FormValue("at")+" "+r.FormValue("after"))
			page := api.Files{Commit: api.Commit{ID: "c1"}, Files: []api.File{{Path: "a"}}, Next: "a"}
			if len(asked) == 2 {
				page.Files, page.Next = []api.File{{Path: "b"}}, ""
			}
			_ = json.NewEncoder(w).Encode(page)
		})
		var paths []string
		c, err := g.Files(t.Context(), "d", "main", "", func(f api.File) error { paths = append(paths, f.Path); return nil })
		if err != nil || c.ID != "c1" || strings.Join(paths, " ") != "a b" || strings.Join(asked, ", ") != "main , c1 a" {
			t.Errorf("%v, %v, %q", err, paths, asked)
		}
	})
}

// More trials than one page has are asked for page by page.
func TestAllPagesOfTrials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
			page := api.TrialList{Trials: []api.Trial{{Model: "a"}}, Total: 2, Next: "a"}
			if r.FormValue("after") == "a" {
				page.Trials, page.Next = []api.Trial{{Model: "b"}}, ""
			}
			_ = json.NewEncoder(w).Encode(page)
		})
		if all, err := g.Trials(t.Context(), "", ""); err != nil || len(all.Trials) != 2 || all.Trials[0].Model != "a" || all.Trials[1].Model != "b" {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// All pages of a version's files are of the version of the first page, even if the champion changes.
func TestPagesAreOfOneVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Path+" "+r.FormValue("version")+" "+r.FormValue("after"))
			page := api.ArtifactFiles{Model: "m", Version: 7, Run: "r", Files: []api.File{{Path: "a"}}, Next: "a"}
			if len(asked) == 2 {
				page.Files, page.Next = []api.File{{Path: "b"}}, ""
			}
			_ = json.NewEncoder(w).Encode(page)
		})
		all, err := g.ModelFiles(t.Context(), "m", "")
		const path = "/base/api/v1/model/files "
		if err != nil || all.Version != 7 || len(all.Files) != 2 || all.Files[0].Path != "a" || all.Files[1].Path != "b" || strings.Join(asked, ",") != path+" ,"+path+"7 a" {
			t.Errorf("%v, %+v, %q", err, all, asked)
		}
		asked = nil
		if all, err := g.RunFiles(t.Context(), "r"); err != nil || len(all.Files) != 2 || !strings.HasPrefix(asked[0], "/base/api/v1/runs/r/files ") {
			t.Errorf("%v, %+v, %q", err, all, asked)
		}
	})
}
