package gateway

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/data/transfer"
)

func (w *runWorld) artifactFiles(path string, headers ...string) api.ArtifactFiles {
	w.Helper()
	return sendDecoded[api.ArtifactFiles](w.world, http.MethodGet, "/api/v1/"+path, "", headers...)
}

// The files of a version are listed page by page, and each can be downloaded with one request.
func TestFilesOfAVersion(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.judgedOf(madeVersion{model: "intent/bot-1", key: "bot-1", run: "r1", recipe: "intent"}, w.keepFiles(map[string]string{"model.onnx": "an ONNX model", "labels.txt": "a\nb\n", "tables/t.csv": ""}))
	w.makeChampions("intent/bot-2", "bot-2", 3)
	const of = "model=intent/bot-1&version=newest"
	first := w.artifactFiles("model/files?" + of + "&limit=2")
	rest := w.artifactFiles("model/files?model=intent/bot-1&version=1&limit=2&after=" + first.Next)
	if first.Model != "intent/bot-1" || first.Version != 1 || first.Run != "r1" || len(first.Files) != 2 || len(rest.Files) != 1 || rest.Next != "" || rest.Files[0].Path != "tables/t.csv" || first.Tree != rest.Tree {
		t.Errorf("the pages are %+v and %+v", first, rest)
	}
	if below := w.artifactFiles("model/files?" + of + "&path=tables"); len(below.Files) != 1 {
		t.Errorf("below tables are %+v", below.Files)
	}
	r := w.do(http.MethodGet, "/api/v1/model/file?"+of+"&path=model.onnx", "")
	if r.body != "an ONNX model" || r.ContentLength != 13 || r.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("the file is %s of %d bytes: %s", r.Header, r.ContentLength, r.body)
	}
	if r := w.do(http.MethodGet, "/api/v1/model/file?"+of+"&path=tables/t.csv", ""); r.StatusCode != http.StatusOK || r.body != "" {
		t.Errorf("an empty file is %s %s", r.Status, r.body)
	}
	for which, want := range map[string]string{"": "intent/bot-2.3", "&version=champion": "intent/bot-2.3", "&version=previous": "intent/bot-2.2", "&version=1": "intent/bot-2.1"} {
		if r := w.do(http.MethodGet, "/api/v1/model/file?model=intent/bot-2&path=model.onnx"+which, ""); r.body != want {
			t.Errorf("%s is %q, not %q", which, r.body, want)
		}
	}
}

// A request for a file that does not exist is answered with the names of those that do.
func TestUnknownFilesOfAVersion(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	many := map[string]string{}
	for i := range namedFiles + 1 {
		many[fmt.Sprintf("f%02d", i)] = ""
	}
	w.judgedOf(madeVersion{model: "m", key: "k", run: "r1", recipe: "intent"}, w.keepFiles(many))
	w.judgedOf(madeVersion{model: "n", key: "k", run: "r2", recipe: "intent"}, strings.Repeat("0", 64))
	const path = "/api/v1/model/file"
	w.expectProblem(http.MethodGet, path+"?model=m&version=1&path=model.onnx", "", 404, `version m@1 has no file \"model.onnx\"; its files: f00, f01, f02, f03, f04, f05, f06, f07, f08, f09 and more`)
	w.expectProblem(http.MethodGet, path+"?model=m&version=1", "", 400, `path: name one file of version m@1; its files: f00`)
	w.expectProblem(http.MethodGet, path+"?model=m&version=9&path=f00", "", 404, "no version 9")
	w.expectProblem(http.MethodGet, path+"?model=m&path=f00&version=x", "", 400, "version")
	w.expectProblem(http.MethodGet, path+"?model=m&path=f00&x=y", "", 400, "x")
	for _, gone := range []string{"s?model=n&version=1", "?model=n&version=1&path=f00"} {
		w.expectProblem(http.MethodGet, path+gone, "", 404, "the files of version n@1 are no longer in the store")
	}
}

// The files of a run are those of its result. A run without files is answered in words.
func TestFilesOfARun(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	made := w.startRuns("fraud", "shop-1", "shop-2")
	w.waitForState(made["shop-1"], tidemill.RunRunning)
	w.endAttempt(made["shop-1"], tidemill.OutcomeSucceeded, "")
	w.waitForState(made["shop-2"], tidemill.RunRunning)
	w.endAttempt(made["shop-2"], tidemill.OutcomeFailed, "no room")
	one := "runs/" + made["shop-1"][:shortestID]
	if list := w.artifactFiles(one + "/files"); list.Run != made["shop-1"] || list.Model != "" || len(list.Files) != 1 || list.Files[0].Path != "model.onnx" {
		t.Errorf("its files are %+v", list)
	}
	if r := w.do(http.MethodGet, "/api/v1/"+one+"/file?path=model.onnx", ""); r.body != "a model" {
		t.Errorf("the file is %s %s", r.Status, r.body)
	}
	w.expectProblem(http.MethodGet, "/api/v1/"+one+"/file?path=x", "", 404, "its files: model.onnx")
	w.expectProblem(http.MethodGet, "/api/v1/runs/"+made["shop-2"]+"/files", "", 404, "has made no files; its state is failed")
	w.expectProblem(http.MethodGet, "/api/v1/runs/zzzzzzzz/files", "", 404, api.UnknownRun)
}

// limitTo sends the later requests to a gateway that knows only the given callers.
func (w *runWorld) limitTo(callers string) {
	w.Helper()
	g := w.openGateway(w.with(func(o *Options) { o.Access = openGuard(w.TB, "version: 1\ntokens:\n"+callers) }))
	w.url = "http://" + g.Addr()
}

// A caller that may not read a model or a run gets neither the list of its files nor their bytes,
// and learns no digest.
func TestFilesOfSomeKeys(t *testing.T) {
	t.Parallel()
	r, reader := tokenLine("reader", "r", "role: read, keys: [bot-1, shop-1]")
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 1)
	w.makeChampions("intent/bot-2", "bot-2", 1)
	ids := w.startRuns("fraud", "shop-1", "shop-2")
	for _, id := range ids {
		w.waitForState(id, tidemill.RunRunning)
		w.endAttempt(id, tidemill.OutcomeSucceeded, "")
	}
	w.limitTo(r + callerLine("all", "role: operate"))
	all := tokenHeader("all")
	for path, may := range map[string]bool{
		"model/files?model=intent/bot-1": true, "model/file?model=intent/bot-1&path=model.onnx": true,
		"model/files?model=intent/bot-2": false, "model/file?model=intent/bot-2&path=model.onnx": false,
		"runs/" + ids["shop-1"] + "/files": true, "runs/" + ids["shop-1"] + "/file?path=model.onnx": true,
		"runs/" + ids["shop-2"] + "/files": false, "runs/" + ids["shop-2"] + "/file?path=model.onnx": false,
	} {
		if r := w.do(http.MethodGet, "/api/v1/"+path, "", all...); r.StatusCode != http.StatusOK {
			t.Errorf("%s is answered to all with %s %s", path, r.Status, r.body)
		}
		r := w.do(http.MethodGet, "/api/v1/"+path, "", reader...)
		if may != (r.StatusCode == http.StatusOK) || !may && (r.StatusCode != http.StatusNotFound || strings.Contains(r.body, "model.onnx")) {
			t.Errorf("%s: %s %s", path, r.Status, r.body)
		}
	}
}

// The list of a version's files is enough for the client that downloads objects, for a caller that
// may read only this model too.
func TestVersionIsDownloaded(t *testing.T) {
	t.Parallel()
	r, reader := tokenLine("reader", "r", "role: read, keys: [bot-1]")
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 1)
	w.limitTo(r)
	dir := t.TempDir()
	c := transfer.Client{Base: w.url + "/api/v1/data", Sign: func(r *http.Request) { r.Header.Set(reader[0], reader[1]) }}
	w.must(c.Get(t.Context(), dir, w.artifactFiles("model/files?model=intent/bot-1", reader...).Files, nil))
	if text := must1(os.ReadFile(filepath.Join(dir, "model.onnx")))(t); string(text) != "intent/bot-1.1" {
		t.Errorf("it is %q", text)
	}
}

// A file whose bytes in the store are wrong is cut short, so no caller takes it for complete.
func TestAFileWithWrongBytesIsCutShort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := must1(store.Open(t.Context(), store.Options{URL: dir}))(t)
	w := newRuns(t, func(o *Options) { o.Store = s })
	w.store = s
	w.makeChampions("m", "k", 1)
	corruptFile(t, dir, w.artifactFiles("model/files?model=m").Files[0].Digest)
	res := must1(http.Get(w.url + "/api/v1/model/file?model=m&path=model.onnx"))(t)
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("it is %s %q", res.Status, text)
	}
}
