package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
)

// artifact is the tree of files that a run has made, with the beginning of the answer that lists
// the files.
type artifact struct {
	name string // version or run, for messages
	tree string
	head api.ArtifactFiles
}

// listModelFiles answers with a page of the files of a version.
func (g *Gateway) listModelFiles(w http.ResponseWriter, r *request) *api.Problem {
	a, values, p := g.modelArtifact(r, "after", "limit", "path")
	if p != nil {
		return p
	}
	return g.listArtifact(w, r, a, values)
}

// sendModelFile answers with the bytes of one file of a version.
func (g *Gateway) sendModelFile(w http.ResponseWriter, r *request) *api.Problem {
	a, values, p := g.modelArtifact(r, "path")
	if p != nil {
		return p
	}
	return g.sendFile(w, r, a, values.Get("path"))
}

// listRunFiles answers with a page of the files that a run has made.
func (g *Gateway) listRunFiles(w http.ResponseWriter, r *request) *api.Problem {
	a, values, p := g.runArtifact(r, "after", "limit", "path")
	if p != nil {
		return p
	}
	return g.listArtifact(w, r, a, values)
}

// sendRunFile answers with the bytes of one file that a run has made.
func (g *Gateway) sendRunFile(w http.ResponseWriter, r *request) *api.Problem {
	a, values, p := g.runArtifact(r, "path")
	if p != nil {
		return p
	}
	return g.sendFile(w, r, a, values.Get("path"))
}

// modelArtifact finds the artifact of the version that a request names. The default is the
// champion.
func (g *Gateway) modelArtifact(r *request, known ...string) (a artifact, values url.Values, p *api.Problem) {
	if values, p = r.parseQuery(append([]string{"model", "version"}, known...)); p != nil {
		return a, nil, p
	}
	if p = g.modelsThere(); p != nil {
		return a, nil, p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	v, p := g.findVersion(ctx, r, values)
	if p != nil {
		return a, nil, p
	}
	name := tidemill.VersionName(v.Model, v.Number)
	a = artifact{"version " + name, v.Artifact, api.ArtifactFiles{Model: v.Model, Version: v.Number, Run: v.Run, Tree: v.Artifact}}
	return a, values, nil
}

// findVersion finds the version that the parameters model and version name.
func (g *Gateway) findVersion(ctx context.Context, r *request, values url.Values) (*ledger.VersionRecord, *api.Problem) {
	m, p := g.findModel(ctx, r, access.Read, values.Get("model"))
	if p != nil {
		return nil, p
	}
	which := orElse(values.Get("version"), tidemill.WhichChampion)
	n, p := versionOf(m, which)
	if p != nil {
		return nil, p
	}
	found, err := g.opt.Ledger.Versions(ctx, m.Name, n)
	switch {
	case err != nil:
		return nil, g.ledgerProblem(r.Context(), err)
	case len(found) == 0: // dropped since the model was read
		return nil, unknownVersion(m.Name, which)
	}
	return &found[0], nil
}

// runArtifact finds the artifact of the run in the path.
func (g *Gateway) runArtifact(r *request, known ...string) (a artifact, values url.Values, p *api.Problem) {
	if values, p = r.parseQuery(known); p != nil {
		return a, nil, p
	}
	if p = g.runsThere(); p != nil {
		return a, nil, p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	run, p := g.findRun(ctx, r, access.Read, r.value)
	if p != nil {
		return a, nil, p
	}
	if run.Result == nil || run.Result.Artifact == "" {
		return a, nil, unknownData(fmt.Sprintf("run %s has made no files; its state is %s", run.ID, run.State))
	}
	a = artifact{"run " + run.ID, run.Result.Artifact, api.ArtifactFiles{Run: run.ID, Tree: run.Result.Artifact}}
	return a, values, nil
}

// listArtifact answers with a page of the files of an artifact.
func (g *Gateway) listArtifact(w http.ResponseWriter, r *request, a artifact, values url.Values) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostFiles, pageFiles)
	if p != nil {
		return p
	}
	page, err := a.head, error(nil)
	if page.Files, page.Next, err = pageOfTree(r.Context(), s, a.tree, values, limit); err != nil {
		return g.artifactFault("list the files", a, err)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// sendFile answers with the bytes of one file. If the bytes in the store are wrong, the answer is cut
// short.
func (g *Gateway) sendFile(w http.ResponseWriter, r *request, a artifact, path string) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	file, p := g.fileOf(r.Context(), s, a, path)
	if p != nil {
		return p
	}
	f, p := g.newTransfer(r)
	if p != nil {
		return p
	}
	from, err := s.OpenFile(r.Context(), file)
	if err != nil {
		return g.artifactFault("open a file", a, err)
	}
	defer from.Close()
	w.Header().Set("Content-Length", strconv.FormatInt(file.Size, 10))
	writeHead(w, http.StatusOK, "application/octet-stream")
	// Net/http cuts the connection of an answer that is shorter than its length.
	if read, _ := f.copyTo(w, from); read != nil && r.Context().Err() == nil {
		g.log.Error("gateway: reading a file failed; the answer is cut short", "file", a.name+" "+file.Path, "reason", read)
	}
	return nil
}

// namedFiles is the number of files that the answer about an unknown file names.
const namedFiles = 10

// fileOf finds a file of an artifact. If there is no such file, the problem names those that exist.
func (g *Gateway) fileOf(ctx context.Context, s *store.Store, a artifact, path string) (api.File, *api.Problem) {
	if path != "" {
		f, err := s.File(ctx, a.tree, path)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return f, g.artifactFault("look for a file", a, err)
		}
	}
	files, next, err := pageOfTree(ctx, s, a.tree, nil, namedFiles)
	if err != nil {
		return api.File{}, g.artifactFault("list the files", a, err)
	}
	names := make([]string, len(files))
	for i := range files {
		names[i] = clipText(files[i].Path)
	}
	has := "its files: " + strings.Join(names, ", ")
	if next != "" {
		has += " and more"
	}
	if path == "" {
		return api.File{}, badParameter("path", fmt.Sprintf("name one file of %s; %s", a.name, has))
	}
	return api.File{}, unknownData(fmt.Sprintf("%s has no file %q; %s", a.name, clipText(path), has))
}

// artifactFault is the problem of an artifact that cannot be read.
func (g *Gateway) artifactFault(what string, a artifact, err error) *api.Problem {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrMissing) {
		return unknownData(fmt.Sprintf("the files of %s are no longer in the store: a garbage collection or the deletion of its key has removed them", a.name))
	}
	return g.storeFault(what+" of "+a.name, err)
}

// pageOfTree returns a page of the files of a tree. The parameters path and after select the files.
// If there are more, next is the after of the next page.
func pageOfTree(ctx context.Context, s *store.Store, tree string, values url.Values, limit int) (files []api.File, next string, err error) {
	files = []api.File{}
	err = s.Walk(ctx, tree, values.Get("path"), values.Get("after"), func(f api.File) error {
		if len(files) == limit {
			next = files[limit-1].Path
			return errFull
		}
		files = append(files, f)
		return nil
	})
	if errors.Is(err, errFull) {
		err = nil
	}
	return files, next, err
}
