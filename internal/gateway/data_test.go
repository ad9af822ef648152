package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/data/transfer"
)

// commitRecorder records the announced commits.
type commitRecorder struct {
	mu      sync.Mutex
	heard   []api.Commit
	refuses error
}

func (c *commitRecorder) announce(_ context.Context, done api.Commit) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses == nil {
		c.heard = append(c.heard, done)
	}
	return c.refuses
}

// withStore adds a store in a folder to a gateway.
func withStore(t testing.TB, c *commitRecorder) func(*Options) {
	t.Helper()
	s := must1(store.Open(t.Context(), store.Options{URL: t.TempDir()}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return func(o *Options) { o.Store, o.Announce = s, c.announce }
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// framesOf returns a batch of objects.
func framesOf(texts ...string) string {
	var b []byte
	for _, t := range texts {
		sum := sha256.Sum256([]byte(t))
		b = append(binary.BigEndian.AppendUint64(append(b, sum[:]...), uint64(len(t))), t...)
	}
	return string(b)
}

const dataPath = "/api/v1/data/"

// commitFiles puts files with the given texts and commits them.
func (w *world) commitFiles(asked api.CommitAsked, files map[string]string, headers ...string) reply {
	w.Helper()
	var texts []string
	lines := []string{string(must1(json.Marshal(asked))(w))}
	for path, text := range files {
		texts = append(texts, text)
		lines = append(lines, string(must1(json.Marshal(api.Change{File: api.File{Path: path, Digest: digestOf(text), Size: int64(len(text))}}))(w)))
	}
	if r := w.post(dataPath+"objects", framesOf(texts...), append(headers, "Content-Type", api.ObjectsType)...); r.StatusCode != http.StatusNoContent {
		return r
	}
	return w.post(dataPath+"commits", strings.Join(lines, "\n"), headers...)
}

func (w *world) committed(asked api.CommitAsked, files map[string]string) (done api.Committed) {
	w.Helper()
	r := w.commitFiles(asked, files)
	if r.StatusCode != http.StatusOK {
		w.Fatalf("%s %s", r.Status, r.body)
	}
	w.must(json.Unmarshal([]byte(r.body), &done))
	return done
}

// getData returns the answer to a GET about data.
func getData[T any](w *world, path string, pairs ...string) (answer T) {
	w.Helper()
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		query.Set(pairs[i], pairs[i+1])
	}
	r := w.do(http.MethodGet, dataPath+path+"?"+query.Encode(), "")
	if r.StatusCode != http.StatusOK {
		w.Fatalf("%s: %s %s", path, r.Status, r.body)
	}
	w.must(json.Unmarshal([]byte(r.body), &answer))
	return answer
}

func TestCommitsAreSeen(t *testing.T) {
	t.Parallel()
	c := &commitRecorder{}
	w := newWorld(t, withStore(t, c))
	if all := getData[api.Datasets](w, "datasets"); all.Datasets == nil || len(all.Datasets) != 0 {
		t.Errorf("%+v", all)
	}
	const name = "bots/bot-42"
	first := w.committed(api.CommitAsked{Dataset: name, Request: "1", Message: "hello"}, map[string]string{"a": "A", "d/b": "B", "d/c": "C"})
	if first.Unchanged || first.Branch != "main" || first.Number != 1 || first.Subject != "bot-42" || first.Files != 3 || first.Added != 3 || first.Message != "hello" {
		t.Errorf("%+v", first)
	}
	if again := w.committed(api.CommitAsked{Dataset: name, Request: "1"}, map[string]string{"a": "A", "d/b": "B", "d/c": "C"}); again.ID != first.ID {
		t.Errorf("the same request led to %+v", again)
	}
	if again := w.committed(api.CommitAsked{Dataset: name}, map[string]string{"a": "A"}); !again.Unchanged || again.ID != first.ID {
		t.Errorf("nothing new led to %+v", again)
	}
	second := w.committed(api.CommitAsked{Dataset: name, Subject: "other"}, map[string]string{"a": "AA"})
	if len(c.heard) != 2 || c.heard[0].ID != first.ID || c.heard[1].ID != second.ID || c.heard[1].Subject != "other" {
		t.Errorf("heard %+v", c.heard)
	}
	if all := getData[api.Datasets](w, "datasets", "prefix", "bots/"); len(all.Datasets) != 1 || all.Datasets[0].Name != name || len(all.Datasets[0].Branches) != 1 {
		t.Errorf("%+v", all)
	}
	for at, want := range map[string]string{"": second.ID, "main": second.ID, second.ID: second.ID, first.ID: first.ID, first.ID[:8]: first.ID} {
		if is := getData[api.Commit](w, "commit", "dataset", name, "at", at); is.ID != want {
			t.Errorf("at %q is %+v", at, is)
		}
	}
	diff := getData[api.Diff](w, "diff", "dataset", name, "from", first.ID, "to", "main")
	if len(diff.Files) != 1 || diff.Files[0].Path != "a" || diff.Files[0].Was.Digest != digestOf("A") || diff.Files[0].Is.Digest != digestOf("AA") || diff.From.ID != first.ID {
		t.Errorf("%+v", diff)
	}
}

func TestPagesOfData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStore(t, &commitRecorder{}))
	files, empty := map[string]string{}, w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"x": "x"})
	for i := range 25 {
		files[fmt.Sprintf("f/%02d", i)] = fmt.Sprint(i)
	}
	w.committed(api.CommitAsked{Dataset: "d"}, files)
	for range 3 {
		w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"x": fmt.Sprint(len(files))})
		files[fmt.Sprint(len(files))] = ""
	}
	var paths, differ, commits []string
	for after := ""; ; {
		page := getData[api.Files](w, "files", "dataset", "d", "path", "f", "after", after, "limit", "10")
		for _, f := range page.Files {
			paths = append(paths, f.Path)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	for after := ""; ; {
		page := getData[api.Diff](w, "diff", "dataset", "d", "from", empty.ID, "after", after, "limit", "10")
		for _, f := range page.Files {
			differ = append(differ, f.Path)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	for after := ""; ; {
		page := getData[api.Log](w, "log", "dataset", "d", "after", after, "limit", "2")
		for _, c := range page.Commits {
			commits = append(commits, fmt.Sprint(c.Number))
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if len(paths) != 25 || paths[0] != "f/00" || paths[24] != "f/24" || len(differ) != 26 || differ[25] != "x" || strings.Join(commits, " ") != "5 4 3 2 1" {
		t.Errorf("%v\n%v\n%v", paths, differ, commits)
	}
	if last := getData[api.Log](w, "log", "dataset", "d", "after", empty.ID); last.Commits == nil || len(last.Commits) != 0 {
		t.Errorf("after the first commit: %+v", last)
	}
	for _, after := range []string{"none", empty.ID[:10]} {
		wantProblem(t, w.do(http.MethodGet, dataPath+"log?dataset=d&after="+after, ""), http.StatusBadRequest, api.InvalidRequest, "after: ")
	}
}

func TestBranches(t *testing.T) {
	t.Parallel()
	c := &commitRecorder{}
	w := newWorld(t, withStore(t, c))
	first := w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"a": "A"})
	second := w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"a": "B"})
	branch := func(body string) reply { return w.post(dataPath+"branches", body) }
	if r := branch(`{"dataset":"d","branch":"old","from":"` + first.ID[:10] + `"}`); r.StatusCode != 200 || !strings.Contains(r.body, `"changed":true`) || !strings.Contains(r.body, first.ID) {
		t.Errorf("%s %s", r.Status, r.body)
	}
	if made := getData[api.Commit](w, "commit", "dataset", "d", "at", "old"); made.Parent != first.ID || made.Tree != first.Tree {
		t.Errorf("%+v", made)
	}
	if all := getData[api.Log](w, "log", "dataset", "d", "branch", "old"); len(all.Commits) != 2 || all.Commits[1].ID != first.ID {
		t.Errorf("%+v", all)
	}
	if r := branch(`{"dataset":"d","branch":"old","from":"` + first.ID + `"}`); r.StatusCode != 200 || !strings.Contains(r.body, `"changed":false`) {
		t.Errorf("%s %s", r.Status, r.body)
	}
	wantProblem(t, branch(`{"dataset":"d","branch":"old"}`), http.StatusConflict, api.Conflict, "give the new one another name")
	wantProblem(t, branch(`{"dataset":"d","branch":"x","from":"none"}`), http.StatusNotFound, api.UnknownData, `no branch "none" and no commit`)
	wantProblem(t, branch(`{"dataset":"none","branch":"x"}`), http.StatusNotFound, api.UnknownData, "none")
	wantProblem(t, branch(`{"dataset":"d","branch":"a b"}`), http.StatusBadRequest, api.InvalidRequest, "a b")
	wantProblem(t, branch(`{"dataset":"d"}`), http.StatusBadRequest, api.InvalidRequest, "branch: ")
	third := w.committed(api.CommitAsked{Dataset: "d", Branch: "old"}, map[string]string{"b": "C"})
	if third.Files != 2 || getData[api.Commit](w, "commit", "dataset", "d").ID != second.ID || len(c.heard) != 3 {
		t.Errorf("%+v, and %d were heard", third, len(c.heard))
	}
}

// An invalid commit is refused with the reason, and stores nothing.
func TestBadCommits(t *testing.T) {
	t.Parallel()
	c := &commitRecorder{}
	w := newWorld(t, withStore(t, c))
	file := func(path string) string {
		return `{"path":"` + path + `","digest":"` + digestOf("A") + `","size":1}`
	}
	w.post(dataPath+"objects", framesOf("A"), "Content-Type", api.ObjectsType)
	for body, says := range map[string]string{
		"":                                     "the body is empty",
		"{}":                                   "dataset: name one",
		"x":                                    "the first line",
		`{"dataset":"d","x":1}`:                "unknown field",
		`{"dataset":"d","subject":"a\u0000b"}`: "subject",
		`{"dataset":"d","message":"` + strings.Repeat("x", mostSaid+1) + `"}` + file("a"): "message: it has 16385 bytes",
		`{"dataset":"d","subject":"` + strings.Repeat("x", mostSaid+1) + `"}` + file("a"): "subject: it has 16385 bytes",
		`{"dataset":"d","branch":"a/b c"}` + file("a"):                                    "a/b c",
		`{"dataset":"../d"}` + "\n" + file("a"):                                           "../d",
		`{"dataset":"d"}` + "\n" + file("../a"):                                           "../a",
		`{"dataset":"d"}` + "\n" + file("a") + "\n" + `{"path":"b"}`:                      "line 3: digest: ",
		`{"dataset":"d"}` + "\n" + file("a") + "\n" + `{"digest":"b"}`:                    "line 3: path: ",
		`{"dataset":"d"}` + "\n" + file("a") + "\n" + `{"path":`:                          "line 3, a change",
		`{"dataset":"d"}` + "\n" + file("a") + "\n" + file("a/b"):                         "a",
		`{"dataset":"d"}` + "\n" + strings.Replace(file("a"), `:1}`, `:-1}`, 1):           "line 2: size: ",
		`{"dataset":"d"}` + "\n" + strings.Replace(file("a"), `:1}`, `:99999999999}`, 1):  "must name its parts",
	} {
		wantProblem(t, w.post(dataPath+"commits", body), http.StatusBadRequest, api.InvalidRequest, says)
		dry := strings.Replace(strings.Replace(body, `"dataset":`, `"dryRun":true,"dataset":`, 1), "{}", `{"dryRun":true}`, 1)
		wantProblem(t, w.post(dataPath+"commits", dry), http.StatusBadRequest, api.InvalidRequest, says)
	}
	absent := strings.ReplaceAll(file("a"), digestOf("A"), digestOf("B"))
	if got := w.post(dataPath+"commits", `{"dataset":"d","dryRun":true}`+absent); got.StatusCode != http.StatusNoContent {
		t.Errorf("a check before the upload answers %d", got.StatusCode)
	}
	wantProblem(t, w.post(dataPath+"commits", `{"dataset":"d"}`+strings.ReplaceAll(file("a"), digestOf("A"), digestOf("B"))), http.StatusNotFound, api.UnknownData, "has to be put first")
	tooMany := `{"dataset":"d"}` + strings.Repeat(`{"path":"x","remove":true}`, mostChanges+1)
	wantProblem(t, w.post(dataPath+"commits", tooMany), http.StatusRequestEntityTooLarge, api.TooLarge, "500000 changes")
	if len(c.heard) > 0 || len(getData[api.Datasets](w, "datasets").Datasets) > 0 {
		t.Errorf("heard %+v", c.heard)
	}
}

// A commit whose event cannot be published is stored, and the same request publishes the
// event later.
func TestACommitThatNobodyHears(t *testing.T) {
	t.Parallel()
	c := &commitRecorder{refuses: errors.New("Kafka is away")}
	w := newWorld(t, withStore(t, c))
	asked := api.CommitAsked{Dataset: "d", Request: "r"}
	r := w.commitFiles(asked, map[string]string{"a": "A"})
	wantProblem(t, r, http.StatusServiceUnavailable, api.Unavailable, "its event could not be published")
	c.refuses = nil
	if done := w.committed(asked, map[string]string{"a": "A"}); done.Number != 1 || len(c.heard) != 1 || c.heard[0].ID != done.ID {
		t.Errorf("%+v, heard %+v", done, c.heard)
	}
}

// A caller with limited keys sees and changes only the datasets of those keys.
func TestDataOfSomeKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		withStore(t, &commitRecorder{})(o)
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("some", "role: operate, keys: [bot-*]")+callerLine("reader", "role: read, keys: [bot-1]"))
	})
	for _, name := range []string{"bots/bot-1", "bots/bot-2", "shops/berlin"} {
		if r := w.commitFiles(api.CommitAsked{Dataset: name}, map[string]string{"a": name}, tokenHeader("all")...); r.StatusCode != 200 {
			t.Fatalf("%s %s", r.Status, r.body)
		}
	}
	seen := func(name string) string {
		return w.do(http.MethodGet, dataPath+"datasets", "", tokenHeader(name)...).body
	}
	if a, s, r := strings.Count(seen("all"), `"name"`), strings.Count(seen("some"), `"name"`), strings.Count(seen("reader"), `"name"`); a != 3 || s != 2 || r != 1 {
		t.Errorf("%d, %d and %d datasets are seen", a, s, r)
	}
	for _, path := range []string{"files?", "file?path=a&", "log?", "diff?", "commit?"} {
		if r := w.do(http.MethodGet, dataPath+path+"dataset=bots/bot-2", "", tokenHeader("some")...); r.StatusCode != 200 {
			t.Errorf("%s %s", r.Status, r.body)
		}
		wantProblem(t, w.do(http.MethodGet, dataPath+path+"dataset=bots/bot-2", "", tokenHeader("reader")...), http.StatusForbidden, api.Forbidden, `the key "bot-2"`)
	}
	some := tokenHeader("some")
	if r := w.commitFiles(api.CommitAsked{Dataset: "x/bot-3"}, map[string]string{"a": "A"}, some...); r.StatusCode != 200 {
		t.Errorf("%s %s", r.Status, r.body)
	}
	wantProblem(t, w.commitFiles(api.CommitAsked{Dataset: "shops/berlin"}, map[string]string{"a": "A"}, some...), http.StatusForbidden, api.Forbidden, `the key "berlin"`)
	wantProblem(t, w.commitFiles(api.CommitAsked{Dataset: "bots/bot-1", Subject: "berlin"}, map[string]string{"a": "A"}, some...), http.StatusForbidden, api.Forbidden, `the subject "berlin"`)
	wantProblem(t, w.post(dataPath+"branches", `{"dataset":"shops/berlin","branch":"b"}`, some...), http.StatusForbidden, api.Forbidden, "berlin")
	wantProblem(t, w.commitFiles(api.CommitAsked{Dataset: "bots/bot-1"}, map[string]string{"a": "A"}, tokenHeader("reader")...), http.StatusForbidden, api.Forbidden, "operate")
	if done := w.do(http.MethodGet, dataPath+"log?dataset=x/bot-3", "", some...); !strings.Contains(done.body, `"by":"some"`) {
		t.Errorf("%s", done.body)
	}
}

// A recipe may take its key from an attribute that the caller of a commit chooses. The commit's event could then start
// a run of any key.
func TestCommitsStartRunsOfTheCallersKeys(t *testing.T) {
	t.Parallel()
	c := must1(config.Parse("c.yaml", []byte(testConfig+`recipes:
  branched: {key: branch, when: {type: new-data, where: "EXISTS commit AND dataset LIKE 'bots/%'"}, run: {dir: ., command: [c]}}
  told: {key: data.message, when: {type: new-data, where: "branch LIKE 'bot-%'"}, run: {dir: ., command: [c]}}
`)))(t)
	w := newWorld(t, func(o *Options) {
		withStore(t, &commitRecorder{})(o)
		o.Config = func() *config.Config { return c }
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("some", "role: operate, keys: [bot-42, bot-43]"))
	})
	for _, c := range []struct{ branch, message, says string }{
		{"bot-42", "", ""},
		{"bot-43", "bot-42", ""},
		{"bot-7", "", "the recipe branched takes its key from branch"},
		{"bot-42", "bot-7", "the recipe told takes its key from data.message"},
		{"", "", "the recipe branched takes its key from branch"}, // main
	} {
		asked := api.CommitAsked{Dataset: "bots/bot-42", Branch: c.branch, Message: c.message}
		r := w.commitFiles(asked, map[string]string{"a": c.branch + c.message}, tokenHeader("some")...)
		if (r.StatusCode == http.StatusOK) != (c.says == "") || !strings.Contains(r.body, c.says) {
			t.Errorf("%+v: %s %s", c, r.Status, r.body)
		}
		if r := w.commitFiles(asked, map[string]string{"a": c.branch + c.message + "again"}, tokenHeader("all")...); r.StatusCode != http.StatusOK {
			t.Errorf("a caller for all keys, %+v: %s %s", c, r.Status, r.body)
		}
	}
}

// A key may have slashes, and a template may continue after the key. The recipes that use a
// dataset decide which key owns it: a caller whose key is only the end of the name has no
// access, and a caller with the right key has.
func TestDataOfKeysWithSlashes(t *testing.T) {
	t.Parallel()
	heard := &commitRecorder{}
	c := must1(config.Parse("c.yaml", []byte(testConfig+`recipes:
  clean: {when: {type: a}, inputs: {raw: "bots/{key}"}, run: {dir: ., command: [c]}, makes: {dataset: "{key}/clean"}}
  deep: {when: {type: a}, inputs: {raw: "bots/eu/{key}"}, run: {dir: ., command: [c]}}
`)))(t)
	w := newWorld(t, func(o *Options) {
		withStore(t, heard)(o)
		o.Config = func() *config.Config { return c }
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("shop", "role: operate, keys: [shop/bot-1]")+
			callerLine("bot", "role: operate, keys: [bot-1, clean]")+callerLine("eu", "role: operate, keys: [eu/*]")+callerLine("both", "role: operate, keys: [eu/bot-1, bot-1]"))
	})
	for name, may := range map[string]string{"bots/shop/bot-1": "shop", "shop/bot-1/clean": "shop", "bots/bot-1": "bot both", "bots/eu/bot-1": "both", "eu/bot-1/clean": "eu both", "other/shop/bot-1": "bot both"} {
		if r := w.commitFiles(api.CommitAsked{Dataset: name, Subject: "s"}, map[string]string{"a": name}, tokenHeader("all")...); r.StatusCode != 200 {
			t.Fatalf("%s %s", r.Status, r.body)
		}
		for _, who := range []string{"shop", "bot", "eu", "both"} {
			may := slices.Contains(strings.Fields(may), who)
			if r := w.do(http.MethodGet, dataPath+"files?dataset="+name, "", tokenHeader(who)...); r.StatusCode != 200 && r.StatusCode != 403 || (r.StatusCode == 200) != may {
				t.Errorf("%s reads %s: %s %s", who, name, r.Status, r.body)
			}
			if r := w.do(http.MethodGet, dataPath+"datasets", "", tokenHeader(who)...); strings.Contains(r.body, `"`+name+`"`) != may {
				t.Errorf("%s sees %s: %s", who, name, r.body)
			}
			if r := w.post(dataPath+"branches", `{"dataset":"`+name+`","branch":"of-`+who+`"}`, tokenHeader(who)...); (r.StatusCode < 300) != may || !may && r.StatusCode != 403 {
				t.Errorf("%s writes %s: %s %s", who, name, r.Status, r.body)
			}
		}
	}
	if r := w.commitFiles(api.CommitAsked{Dataset: "shop/bot-1/clean"}, map[string]string{"a": "new"}, tokenHeader("shop")...); r.StatusCode != 200 {
		t.Errorf("%s %s", r.Status, r.body)
	}
	if last := heard.heard[len(heard.heard)-1]; last.Subject != "shop/bot-1" {
		t.Errorf("its event is of %q", last.Subject)
	}
	wantProblem(t, w.commitFiles(api.CommitAsked{Dataset: "bots/eu/bot-1"}, map[string]string{"a": "new"}, tokenHeader("both")...), http.StatusBadRequest, api.InvalidRequest, "give the one")
	wantProblem(t, w.do(http.MethodGet, dataPath+"files?dataset=bots/eu/bot-1", "", tokenHeader("eu")...), http.StatusForbidden, api.Forbidden, "you may not read all of them")
}

func TestTreesOfRuns(t *testing.T) {
	t.Parallel()
	plan := must1(json.Marshal(tidemill.Plan{Inputs: []tidemill.Input{{Tree: "in"}, {URI: "s3://elsewhere"}}}))(t)
	attempts := []tidemill.Attempt{{Where: tidemill.Where{ResumedFrom: "saved"}}, {}}
	for name, c := range map[string]struct {
		run  tidemill.Run
		want string
	}{
		"waiting": {tidemill.Run{State: tidemill.RunWaiting}, ""},
		"live":    {tidemill.Run{State: tidemill.RunRunning, Plan: plan, Attempts: attempts, Result: &tidemill.Result{Artifact: "half"}}, "half saved in"},
		"ended":   {tidemill.Run{State: tidemill.RunSucceeded, Plan: plan, Attempts: attempts, Result: &tidemill.Result{Artifact: "made"}}, "made"},
		"failed":  {tidemill.Run{State: tidemill.RunFailed}, ""},
	} {
		if got := strings.Join(treesOf(&c.run), " "); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Files that our own client puts and gets stay the same, large ones too.
func TestCarried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStore(t, &commitRecorder{}))
	from, to := t.TempDir(), t.TempDir()
	for i := range 300 {
		w.must(os.WriteFile(filepath.Join(from, fmt.Sprint(i)), fmt.Append(nil, i), 0o644))
	}
	large := must1(os.Create(filepath.Join(from, "large")))(t)
	w.must(errors.Join(large.Truncate(api.PartSize+3), large.Close()))
	all := must1(transfer.Scan(t.Context(), from, nil))(t)
	c := transfer.Client{Base: w.url + "/api/v1/data"}
	w.must(c.Put(t.Context(), from, all, nil))
	w.must(c.Get(t.Context(), to, all, nil))
	if back := must1(transfer.Scan(t.Context(), to, nil))(t); fmt.Sprint(back) != fmt.Sprint(all) {
		t.Errorf("%v", back)
	}
	w.waitUntil("nothing is taken any more", func() bool { return w.gateway.room.takenBytes() == 0 }) // the end of a sized answer arrives before its handler returns
}

// Without a limit the answer has all datasets, as older clients expect.
func TestDatasetsInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStore(t, &commitRecorder{}))
	for _, name := range []string{"a", "b/1", "b/2", "b/3", "c"} {
		w.committed(api.CommitAsked{Dataset: name}, map[string]string{"x": "x"})
	}
	var names []string
	for after := ""; ; {
		page := getData[api.Datasets](w, "datasets", "prefix", "b/", "limit", "2", "after", after)
		for _, d := range page.Datasets {
			names = append(names, d.Name)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if all := getData[api.Datasets](w, "datasets"); strings.Join(names, " ") != "b/1 b/2 b/3" || len(all.Datasets) != 5 || all.Next != "" {
		t.Errorf("%v, of %+v", names, all)
	}
}

func TestFilesOfCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStore(t, &commitRecorder{}))
	first := w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"f/a b": "one"})
	w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"f/a b": "two"})
	for at, want := range map[string]string{"": "two", "main": "two", first.ID[:8]: "one"} {
		r := w.do(http.MethodGet, dataPath+"file?dataset=d&path=f/a%20b&at="+at, "")
		if r.body != want || r.Header.Get("Content-Type") != "application/octet-stream" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %q %v", at, r.body, r.Header)
		}
	}
	if r := w.do(http.MethodGet, dataPath+"file?dataset=d&path=f/c", ""); r.StatusCode != http.StatusNotFound || !strings.Contains(r.body, "f/a b") {
		t.Errorf("an unknown file: %d %s", r.StatusCode, r.body)
	}
}
