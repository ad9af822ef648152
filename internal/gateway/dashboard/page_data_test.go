package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
)

func oneCommit(name string) api.Commit {
	return api.Commit{ID: "9f3kq7m2abcdefgh", Dataset: "bots/bot-1", Branch: "main", Number: 3, Parent: "77ab2kq0zzabcdef", Time: testNow(), By: name, Message: name, Files: 1200, Bytes: 4096, Added: 1100, Changed: 2}
}

func oneDataset(name string) fakeAPI {
	file := api.File{Path: name, Size: 100, Digest: strings.Repeat("a", 64)}
	return fakeAPI{
		"GET /api/v1/data/datasets": api.Datasets{Datasets: []api.Dataset{{Name: name, Branches: []string{"main", name}}}, Next: "z&z"},
		"GET /api/v1/data/commit":   oneCommit(name),
		"GET /api/v1/data/log":      api.Log{Commits: []api.Commit{oneCommit(name)}},
		"GET /api/v1/data/files":    api.Files{Commit: oneCommit(name), Files: []api.File{file}, Next: name},
		"GET /api/v1/data/diff":     api.Diff{Files: []api.Difference{{Path: name, Is: &file}, {Path: name, Was: &file}, {Path: name, Was: &file, Is: &file}}},
		"GET /api/v1/recipes":       api.Recipes{Recipes: []api.Recipe{{Name: "intent", Inputs: []api.RecipeInput{{Dataset: "bots/{key}", Branch: "main"}}}, {Name: "clean", Dataset: "bots/{key}"}}},
	}
}

func bodyOf(d *Dashboard, path string) string {
	return strings.Replace(fetch(d, path).Body.String(), "<script type=", "", 1)
}

func TestDatasetsAreListed(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "bots/bot-1") {
		body := bodyOf(open(t, oneDataset(name)), "/ui/data")
		mustBeText(t, body)
		mustHave(t, body, "9f3kq7m2abcd", "1\u202f200", "after=z%26z", "/ui/act/gc")
	}
}

func TestDatasetShowsItsCommitsAndRecipes(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "bots/bot-1") {
		body := bodyOf(open(t, oneDataset(name)), "/ui/data?dataset=bots/bot-1")
		mustBeText(t, body)
		mustHave(t, body, "1\u202f100", "commit=9f3kq7m2abcdefgh", ">intent</bdi>", ">clean</bdi>", "/ui/act/branch?dataset=bots%2Fbot-1")
	}
}

func TestCommitShowsItsFilesAndChanges(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "examples/a b.csv") {
		body := bodyOf(open(t, oneDataset(name)), "/ui/data?dataset=bots/bot-1&commit=9f3kq7m2abcdefgh")
		mustBeText(t, body)
		mustHave(t, body, "added", "removed", "changed", "77ab2kq0zzab", "rel=\"next\"")
	}
}

// rawAPI is a fakeAPI with a file of given bytes.
type rawAPI struct {
	fakeAPI
	file []byte
}

func (a rawAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/api/v1/data/file" {
		a.fakeAPI.ServeHTTP(w, r)
		return
	}
	_, _ = w.Write(a.file)
}

func openRaw(t *testing.T, file []byte, caller api.Caller) *Dashboard {
	answers := oneDataset("x")
	answers["GET /api/v1/caller"] = caller
	answers["GET /api/v1/data/files"] = api.Files{Commit: oneCommit("x"), Files: []api.File{{Path: "x", Size: int64(len(file))}}}
	d := New(Options{API: rawAPI{answers, file}, Install: func() string { return "" }, Now: testNow})
	return d
}

func TestFilesAreShownByTheirContent(t *testing.T) {
	t.Parallel()
	png := "\x89PNG\r\n\x1a\n" + strings.Repeat("x", 100)
	for _, c := range []struct {
		name, content string
		want          []string
	}{
		{"a.csv", "text,label\n\"a, b\",<script>alert(1)</script>\nshort\n", []string{"label</bdi>", ">a, b</bdi>", "&lt;script&gt;"}},
		{"a.tsv", "a\tb\n1\t2\n", []string{">2</bdi></td>"}},
		{"a.json", `{"b":{"c":[1]}}`, []string{"&#34;b&#34;: {\n"}},
		{"a.jsonl", "{\"b\":1}\n<script>\n", []string{"{&#34;b&#34;:1}", "JSON lines"}},
		{"a.html", "<!doctype html><script>alert(1)</script>", []string{"&lt;script&gt;", "text, 40 B"}},
		{"a.svg", `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>`, []string{"&lt;svg", "text, "}},
		{"a.txt", "one \u202e two", []string{`\u202e`}},
		{"a.onnx", "\x08\x01\x00\x00abc", []string{"08 01 00 00 61 62 63", "binary"}},
		{"a.txt", "\xff\xfe\xfd\xfc\xfb", []string{"ff fe fd"}},
		{"a.txt", "", []string{"empty file"}},
		{"a.html", png, []string{`<img class="shown" src="/api/v1/data/file?`, "image/png"}},
		{"a.png", "<svg/>", []string{"&lt;svg/&gt;"}},
		{"a.bin", strings.Repeat("\x00", 300), []string{"The first 256 bytes"}},
	} {
		body := bodyOf(openRaw(t, []byte(c.content), everyRole()), "/ui/data?dataset=bots/bot-1&commit=9f3&path="+c.name)
		mustHave(t, body, c.want...)
		mustBeText(t, strings.ReplaceAll(body, `<img class="shown"`, ""))
	}
}

// With an access file an image needs the token, so the script fetches it.
func TestImageIsFetchedWithTheToken(t *testing.T) {
	t.Parallel()
	body := bodyOf(openRaw(t, []byte("GIF89a\x01\x00"), api.Caller{Name: "ana", Roles: []string{"read"}}), "/ui/data?dataset=d&path=x.gif")
	mustHave(t, body, `<tm-image data-src="/api/v1/data/file?`)
	mustBeText(t, body)
}

func TestLargeFilesAreCut(t *testing.T) {
	t.Parallel()
	var table, lines strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&table, "%d,<b>%s</b>\n", i, strings.Repeat("v", 10))
		fmt.Fprintf(&lines, "{\"n\":%d}\n", i)
	}
	object, _ := json.Marshal(map[string]string{"a": strings.Repeat("b", 2<<20)})
	long := strings.Repeat("a,"+strings.Repeat("b", 100_000)+"\n", 30)
	wide := strings.Repeat(strings.Repeat("a,", lookColumns)+"lost\n", 2)
	for content, note := range map[string]string{long: "The beginning of the file.", wide: "The first 50 columns."} {
		body := bodyOf(openRaw(t, []byte(content), everyRole()), "/ui/data?dataset=d&path=a.csv")
		mustHave(t, body, note)
		if strings.Contains(body, "lost") {
			t.Error("more columns are shown")
		}
	}
	for name, content := range map[string]string{"a.csv": table.String(), "a.jsonl": lines.String(), "a.json": string(object), "a.txt": strings.Repeat("a", 3<<20), "a.bin": strings.Repeat("\x00", 3<<20)} {
		body := bodyOf(openRaw(t, []byte(content), everyRole()), "/ui/data?dataset=d&path="+name)
		mustHave(t, body, "he "+map[string]string{"a.csv": "first 100 rows", "a.jsonl": "first lines", "a.json": "beginning of the file", "a.txt": "beginning of the file", "a.bin": "first 256 bytes"}[name])
		if len(body) > 200_000 {
			t.Errorf("%s makes a page of %d bytes", name, len(body))
		}
	}
}

func TestTemplatesOfDatasets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, name string
		want           bool
	}{
		{"bots/{key}", "bots/bot-1", true}, {"bots/{key}", "bots/", false}, {"bots/{key}", "other/bot-1", false},
		{"a/{key}/z", "a/k/z", true}, {"a/{key}/z", "a/z", false}, {"all", "all", true}, {"all", "all/1", false},
	} {
		if got := templateMakes(c.template, c.name); got != c.want {
			t.Errorf("%s and %s: %v", c.template, c.name, got)
		}
	}
}
