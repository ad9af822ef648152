package gateway

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

// A collection keeps the objects of commits and of runs' outputs, and no others.
func TestCollect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := must1(store.Open(t.Context(), store.Options{URL: dir}))(t)
	w := newRuns(t, func(o *Options) { o.Store, o.Announce = s, (&commitRecorder{}).announce })
	w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"a": "held"})
	put := func(text string) api.File {
		must1(0, s.PutObject(t.Context(), digestOf(text), int64(len(text)), strings.NewReader(text)))(t)
		return api.File{Path: "f", Digest: digestOf(text), Size: int64(len(text))}
	}
	put("garbage")
	made := must1(s.Tree(t.Context(), []api.File{put("made")}))(t)
	id := w.startRuns("fraud", "k")["k"]
	run := w.waitForState(id, tidemill.RunRunning)
	w.must(w.launcher.Stop(t.Context(), tidemill.AttemptName(id, 1)))
	must1(w.foreman.Finish(t.Context(), &run.Run, 1, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: made.Tree}}))(t)

	if young := sendDecoded[api.Collected](w.world, http.MethodPost, dataPath+"gc", "{}"); young.Removed > 0 {
		t.Errorf("%+v", young)
	}
	w.must(ageFiles(dir, 25*time.Hour))
	collect := func(body string) api.Collected {
		return sendDecoded[api.Collected](w.world, http.MethodPost, dataPath+"gc", body)
	}
	if dry := collect(`{"dryRun":true}`); !dry.DryRun || dry.Removed != 1 || dry.Objects != dry.Kept+1 {
		t.Errorf("%+v", dry)
	}
	if done := collect(`{}`); done.DryRun || done.Removed != 1 || done.Freed != int64(len("garbage")) {
		t.Errorf("%+v", done)
	}
	for text, there := range map[string]bool{"held": true, "made": true, "garbage": false} {
		if r := w.do(http.MethodGet, getPath(text), ""); (r.StatusCode == http.StatusOK) != there {
			t.Errorf("%s: %s", text, r.Status)
		}
	}
	w.gateway.collecting.Lock()
	wantProblem(t, w.post(dataPath+"gc", "{}"), http.StatusServiceUnavailable, api.Unavailable, "a garbage collection is running")
	w.gateway.collecting.Unlock()
}

// ageFiles sets back the time of all files in a folder.
func ageFiles(dir string, by time.Duration) error {
	then := time.Now().Add(-by)
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return os.Chtimes(path, then, then)
	})
}

// If the ledger cannot answer, the objects in use are unknown, and no object is removed.
func TestNothingIsCollectedInTheDark(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := must1(store.Open(t.Context(), store.Options{URL: dir}))(t)
	w := newRuns(t, func(o *Options) { o.Store, o.Announce = s, (&commitRecorder{}).announce })
	must1(0, s.PutObject(t.Context(), digestOf("made"), 4, strings.NewReader("made")))(t)
	w.must(ageFiles(dir, 25*time.Hour))
	w.must(w.redis.FlushAll(t.Context()).Err())
	w.must(w.servers.Close())
	wantProblem(t, w.post(dataPath+"gc", "{}"), http.StatusServiceUnavailable, api.Unavailable, "what runs use")
	if missing := must1(s.Missing(context.Background(), []api.Part{{Digest: digestOf("made"), Size: 4}}))(t); len(missing) > 0 {
		t.Error("it was removed")
	}
}
