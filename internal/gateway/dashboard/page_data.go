package dashboard

import (
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tidemill.dev/api"
)

func dataPages() []*page {
	return []*page{{path: "/ui/data", file: "data", nav: "/ui/data", title: dataTitle, load: loadDataPage, regions: []region{
		{"datasets", "data", loadDatasets},
		{"log", "data", loadCommits},
		{"commit", "", loadCommit},
		{"file", "", loadFile},
	}}}
}

func dataTitle(v *visit) string {
	switch {
	case v.query("path") != "":
		return "File " + word(v.query("path"))
	case v.query("dataset") != "":
		return "Dataset " + word(v.query("dataset"))
	}
	return "Data"
}

// dataPage says which regions the page has.
type dataPage struct {
	Dataset, Branch, Commit, Path string
	Branches                      []string
	Readers                       []reader
}

// mainBranch is the branch that a page shows if none is named.
const mainBranch = "main"

func loadDataPage(v *visit) (any, error) {
	p := dataPage{Dataset: v.query("dataset"), Branch: v.query("branch"), Commit: v.query("commit"), Path: v.query("path")}
	if p.Dataset == "" {
		return p, nil
	}
	// The name of a dataset may begin those of others, so the first is the one.
	all, err := get[api.Datasets](v, "/api/v1/data/datasets", url.Values{"prefix": {p.Dataset}, "limit": {"1"}})
	if err != nil {
		return nil, err
	}
	if len(all.Datasets) > 0 && all.Datasets[0].Name == p.Dataset {
		p.Branches = all.Datasets[0].Branches
	}
	if p.Branch == "" {
		p.Branch = mainBranch
	}
	p.Readers, err = askReaders(v, p.Dataset)
	return p, err
}

// reader is a recipe that reads or makes a dataset.
type reader struct {
	Recipe, Branch string
	Makes          bool
}

// askReaders returns the recipes of a dataset. A gateway without runs has none.
func askReaders(v *visit, dataset string) ([]reader, error) {
	recipes, err := askRecipes(v)
	return readersOf(recipes, dataset), err
}

func askRecipes(v *visit) ([]api.Recipe, error) {
	all, err := get[api.Recipes](v, "/api/v1/recipes", nil)
	if isNotImplemented(err) || isNotFound(err) {
		return nil, nil
	}
	return all.Recipes, err
}

func readersOf(recipes []api.Recipe, dataset string) (all []reader) {
	for i := range recipes {
		r := &recipes[i]
		for _, in := range r.Inputs {
			if templateMakes(in.Dataset, dataset) {
				all = append(all, reader{Recipe: r.Name, Branch: in.Branch})
			}
		}
		if r.Dataset != "" && templateMakes(r.Dataset, dataset) {
			all = append(all, reader{Recipe: r.Name, Makes: true})
		}
	}
	return all
}

// templateMakes reports whether a template can make a name: whether they have the same text before
// the first field, and after the last.
func templateMakes(template, name string) bool {
	begin, rest, fields := strings.Cut(template, "{")
	if !fields {
		return template == name
	}
	end := rest[strings.LastIndex(rest, "}")+1:]
	return len(name) > len(begin)+len(end) && strings.HasPrefix(name, begin) && strings.HasSuffix(name, end)
}

const (
	pageDatasets = 50
	pageCommits  = 50
	pageFiles    = 100
)

// datasetRow is a dataset with its newest commit. Newest is nil if the commit cannot be read now.
type datasetRow struct {
	api.Dataset
	Newest  *api.Commit
	Readers []reader
}

type datasetList struct {
	Rows              []datasetRow
	NextURL, FirstURL string
	Filtered          bool
}

func loadDatasets(v *visit) (any, error) {
	q := v.pick("prefix", "after")
	q.Set("limit", strconv.Itoa(pageDatasets))
	all, err := get[api.Datasets](v, "/api/v1/data/datasets", q)
	if err != nil {
		return nil, err
	}
	recipes, err := askRecipes(v)
	if err != nil {
		return nil, err
	}
	l := datasetList{Rows: make([]datasetRow, len(all.Datasets)), Filtered: v.query("prefix") != ""}
	var asking sync.WaitGroup // one store's answer may take long, so all are asked at once
	for i, d := range all.Datasets {
		l.Rows[i] = datasetRow{Dataset: d, Readers: readersOf(recipes, d.Name)}
		asking.Go(func() { l.Rows[i].Newest = newestCommit(v, d) })
	}
	asking.Wait()
	l.NextURL, l.FirstURL = v.pageURLs("after", all.Next)
	return l, nil
}

func newestCommit(v *visit, d api.Dataset) *api.Commit {
	at := mainBranch
	if len(d.Branches) > 0 && !slices.Contains(d.Branches, mainBranch) {
		at = d.Branches[0]
	}
	c, err := get[api.Commit](v, "/api/v1/data/commit", url.Values{"dataset": {d.Name}, "at": {at}})
	if err != nil {
		return nil
	}
	return &c
}

type commitList struct {
	api.Log
	NextURL, FirstURL string
}

func loadCommits(v *visit) (any, error) {
	q := v.pick("dataset", "branch", "after")
	q.Set("limit", strconv.Itoa(pageCommits))
	log, err := get[api.Log](v, "/api/v1/data/log", q)
	if err != nil {
		return nil, err
	}
	l := commitList{Log: log}
	l.NextURL, l.FirstURL = v.pageURLs("after", log.Next)
	return l, nil
}

// commitShown is one commit with its files and its changes.
type commitShown struct {
	api.Files
	Diff              *api.Diff // nil for a first commit
	NextURL, FirstURL string
	DiffNextURL       string
}

func loadCommit(v *visit) (any, error) {
	q := url.Values{"dataset": {v.query("dataset")}, "at": {v.query("commit")}, "limit": {strconv.Itoa(pageFiles)}}
	if after := v.query("after"); after != "" {
		q.Set("after", after)
	}
	files, err := get[api.Files](v, "/api/v1/data/files", q)
	if err != nil {
		return nil, err
	}
	c := commitShown{Files: files}
	c.NextURL, c.FirstURL = v.pageURLs("after", files.Next)
	if files.Commit.Parent == "" {
		return c, nil
	}
	q = url.Values{"dataset": q["dataset"], "from": {files.Commit.Parent}, "to": {files.Commit.ID}, "limit": {strconv.Itoa(pageFiles)}}
	if after := v.query("changed"); after != "" {
		q.Set("after", after)
	}
	diff, err := get[api.Diff](v, "/api/v1/data/diff", q)
	if isNotFound(err) { // the parent was removed
		return c, nil
	}
	c.Diff = &diff
	c.DiffNextURL, _ = v.pageURLs("changed", diff.Next)
	return c, err
}

// changeOf is the change of a difference in a word.
func changeOf(d api.Difference) string {
	switch {
	case d.Was == nil:
		return "added"
	case d.Is == nil:
		return "removed"
	}
	return "changed"
}

func loadFile(v *visit) (any, error) {
	q := url.Values{"dataset": {v.query("dataset")}, "at": {v.query("commit")}, "path": {v.query("path")}}
	whole, err := get[api.Files](v, "/api/v1/data/files", url.Values{"dataset": q["dataset"], "at": q["at"], "path": q["path"], "limit": {"1"}})
	if err != nil {
		return nil, err
	}
	begin, err := v.askBegin("/api/v1/data/file", q, lookBytes)
	if err != nil {
		return nil, err
	}
	size := int64(len(begin))
	if len(whole.Files) > 0 {
		size = whole.Files[0].Size
	}
	l := lookInto(v.query("path"), begin, size)
	l.URL, l.Commit = "/api/v1/data/file?"+q.Encode(), whole.Commit
	return l, nil
}

func branchURL(dataset, branch string) string {
	return queryURL("/ui/data", "dataset", dataset, "branch", branch)
}

func commitURL(dataset, commit string) string {
	return queryURL("/ui/data", "dataset", dataset, "commit", commit)
}

func datasetLink(name string) template.HTML { return link(dataURL(name), name) }

// fileLink leads to the look into a file.
func fileLink(dataset, commit, path string) template.HTML {
	return link(queryURL("/ui/data", "dataset", dataset, "commit", commit, "path", path), path)
}

// askBegin returns the first bytes of an answer of the API. It ends the answer after them.
func (v *visit) askBegin(path string, query url.Values, most int) ([]byte, error) {
	w := &recorder{header: http.Header{}, most: most}
	status, body, err := v.askInto(w, http.MethodGet, path, query, nil)
	if w.body.Len() >= most {
		err = nil
	}
	if err == nil {
		err = problemOf(status, body)
	}
	return body, err
}
