package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/platform"
)

// folder makes a folder with text files.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		at := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var committedAs = regexp.MustCompile(`committed (\S+) to`)

// Lists do not say that there is nothing if the store was removed.
func TestDataOfARemovedStore(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	startUp(t, data)
	ok(t, "data", "put", "bots/bot-1", folder(t, map[string]string{"a.csv": "1"}), "--data", data)
	if err := os.RemoveAll(filepath.Join(data, "store")); err != nil {
		t.Fatal(err)
	}
	mention(t, "data ls", call(t, "", "data", "ls", "--data", data).err, "the folder of the object store was removed, emptied or replaced")
	running, _, err := platform.Find(data)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(running.URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "was removed, emptied or replaced while it was in use") {
		t.Errorf("%d, %s", res.StatusCode, body)
	}
}

func TestDataGoesAndComes(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	startUp(t, data)
	do := func(args ...string) string { t.Helper(); return ok(t, append(args, "--data", data)...) }
	if o := call(t, "", "data", "ls", "--data", data); o.code != 0 || !strings.Contains(o.err, "There are no datasets yet") {
		t.Errorf("%+v", o)
	}
	from := folder(t, map[string]string{"train/a.csv": "a", "train/b.csv": "b", "labels.txt": "x\ny\n"})
	dry := call(t, "", "data", "put", "bots/bot-42", from, "--dry-run", "--data", data)
	mention(t, "put --dry-run", dry.out, "+ labels.txt  4 B\n", "+ train/a.csv")
	mention(t, "put --dry-run", dry.err, "3 files would change on main of bots/bot-42")
	put := do("data", "put", "bots/bot-42", from, "-m", "week 11")
	mention(t, "put", put, "to bots/bot-42 on main: 3 added, 0 changed, 0 removed; it has 3 files, 6 B", "uploaded 6 B of 6 B in ")
	first := committedAs.FindStringSubmatch(put)[1]
	mention(t, "put again", do("data", "put", "bots/bot-42", from), "nothing has changed: bots/bot-42 on main has these files already, at commit "+first)

	one := folder(t, map[string]string{"c.csv": "c"})
	mention(t, "put a file", do("data", "put", "bots/bot-42", filepath.Join(one, "c.csv")), "1 added, 0 changed", "it has 4 files", "uploaded 1 B of 1 B")
	mention(t, "what replacing would do", do("data", "put", "bots/bot-42", one, "--replace", "--dry-run"), "- labels.txt\n", "- train/b.csv\n")
	mention(t, "ls", do("data", "ls"), "DATASET", "bots/bot-42  main")
	mention(t, "ls of a folder then", do("data", "ls", "bots/bot-42@"+first, "train"), "1 B  train/a.csv\n")
	var f api.File
	if err := json.Unmarshal([]byte(do("data", "ls", "bots/bot-42", "c.csv", "-o", "json")), &f); err != nil || f.Path != "c.csv" || f.Size != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	mention(t, "log", do("data", "log", "bots/bot-42"), "COMMIT", first, "+3 ~0 -0", "week 11", "4 files, 7 B")
	mention(t, "data alone", do("data"), "DATASET", "bots/bot-42  main")
	bad := call(t, "", "data", "put", "bots/Müller", from, "--data", data)
	mention(t, "a bad name", bad.err, "check the commit, before anything is uploaded: commit to branch main of dataset bots/Müller: ", "'ü'")
	mention(t, "branch", do("data", "branch", "bots/bot-42", "before", "--from", first), "made branch before of bots/bot-42 at commit", "3 files")
	mention(t, "branch again", do("data", "branch", "bots/bot-42", "before", "--from", first), "nothing to do: branch")
	mention(t, "diff", do("data", "diff", "bots/bot-42", "before", "main"), "+ c.csv  1 B\n")
	mention(t, "diff back", do("data", "diff", "bots/bot-42", "main", "before"), "- c.csv\n")

	to := filepath.Join(t.TempDir(), "new", "folder")
	mention(t, "get", do("data", "get", "bots/bot-42@before", to), "got 3 files, 6 B, of commit ", "downloaded 6 B")
	if b, err := os.ReadFile(filepath.Join(to, "train", "b.csv")); string(b) != "b" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	mention(t, "get again", do("data", "get", "bots/bot-42@before", to), "downloaded 0 B")
	mention(t, "get one", do("data", "get", "bots/bot-42", to, "c.csv"), "got 1 file, 1 B")
	mention(t, "gc", do("data", "gc", "--dry-run"), "would remove 0 of ", "stay")
	mention(t, "gc", do("data", "gc", "-o", "json"), `"removed": 0`)

	events := do("tail", "events", "--from", "beginning", "--no-follow", "--where", "type = 'new-data'", "-o", "json")
	ids := map[string]bool{} // recovery at the start may announce the first commit too, with the same id
	for line := range strings.Lines(strings.TrimSpace(events)) {
		var v broker.View
		if err := broker.UnmarshalStructured([]byte(line), &v); err != nil || v.Subject != "bot-42" {
			t.Errorf("%s: %v", line, err)
		}
		ids[v.ID] = true
	}
	if len(ids) != 2 {
		t.Errorf("%s", events)
	}
}

func TestSlipsWithData(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	startUp(t, data)
	from := folder(t, map[string]string{"a": "a"})
	ok(t, "data", "put", "d", from, "--data", data)
	differs := folder(t, map[string]string{"a": "b"})
	for args, says := range map[string]string{
		"data pt":                              "did you mean data put?",
		"data put":                             "DATASET is missing",
		"data put d":                           "DIR is missing",
		"data put d@main " + from:              "give it by --branch main",
		"data put d /does/not/exist":           "no such file",
		"data put d " + t.TempDir():            "it has no files",
		"data put ../d " + from:                "../d",
		"data put d " + from + " -b a/b/":      "a/b/",
		"data ls none":                         `dataset "none" has no branch "main"`,
		"data ls d@none":                       `has no branch "none" and no commit`,
		"data ls @x":                           "is not the name of a dataset",
		"data ls d a b":                        `"b" is one argument too many`,
		"data get d":                           "DIR is missing",
		"data get d " + differs:                "is there and is not that file",
		"data get d " + differs + " none":      "has no file and no folder none",
		"data log none":                        `dataset "none" has no branch "main"; tidemill data ls lists datasets and branches`,
		"data log d -n 0":                      "give 1 to 1000",
		"data diff d":                          "FROM is missing",
		"data diff d main none":                `"none"`,
		"data branch d main --from none":       `"none"`,
		"data branch none x":                   "none",
		"data gc --older 1h":                   "name at least that",
		"data gc --older -1h":                  "give at least 24h",
		"data ls --url http://127.0.0.1:1 x":   "refused",
		"data put d " + from + " --output csv": "csv",
	} {
		if o := call(t, "", append(strings.Fields(args), "--data", data)...); o.code == 0 || !strings.Contains(o.err, says) {
			t.Errorf("%s: %+v, want %q", args, o, says)
		}
	}
	if o := call(t, "", "data", "get", "d", differs, "--replace", "--data", data); o.code != 0 {
		t.Errorf("%+v", o)
	}
}

// An interrupted put says how to continue.
func TestInterruptedPut(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	startUp(t, data)
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprint(i)] = fmt.Sprint(i)
	}
	from := folder(t, files)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out, stderr syncBuffer
	err := run(ctx, []string{"data", "put", "d", from, "--data", data}, strings.NewReader(""), &out, &stderr)
	if err == nil || !strings.Contains(err.Error(), "cancel") && !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v", err)
	}
	mention(t, "put", ok(t, "data", "put", "d", from, "--data", data), "200 added")
}
