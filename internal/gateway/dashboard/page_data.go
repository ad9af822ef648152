package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func dataPages() []*page {
	return []*page{{path: "/ui/data", nav: "/ui/data", title: dataTitle, main: loaded(loadDataPage, showDataPage), regions: []region{
		part("datasets", "data", loadDatasets, showDatasets),
		part("log", "data", loadCommits, showCommits),
		part("commit", "", loadCommit, showCommit),
		part("file", "", loadFile, showFile),
	}}}
}

func showDataPage(v *view, p *dataPage) Node {
	title := h.H1(say(v.Title))
	switch {
	case p.Path != "":
		return list(title, p.crumbs(), v.Region("file"))
	case p.Commit != "":
		return list(title, p.crumbs(), v.Region("commit"))
	case p.Dataset != "":
		return list(title, p.crumbs(),
			actions(v.Act("branch", "dataset", p.Dataset, "from", p.Branch), say(" "), button(whyURL("commit/"+p.Dataset+"@"+p.Branch), "Causes and effects")),
			facts(fact("Read by", readersShown(p.Readers, false)), fact("Made by", readersShown(p.Readers, true)), fact("Branches", p.branches())),
			v.Region("log"))
	}
	return list(title, lead(say("Datasets with their commits. A recipe reads the newest commit of a branch.")), v.Region("datasets"),
		h.H2(say("Storage")), h.P(say("A collection removes objects that no commit, run or model uses any more. Its first step only counts them.")), actions(v.Act("gc")))
}

// crumbs leads from a file to its commit, its dataset, and all data.
func (p *dataPage) crumbs() Node {
	dataset := Node(text(p.Dataset))
	if p.Commit != "" || p.Path != "" {
		dataset = anchor(dataURL(p.Dataset), dataset)
	}
	all := g.Group{anchor("/ui/data", say("Data")), say(" / "), dataset}
	switch {
	case p.Commit != "" && p.Path != "":
		all = append(all, say(" / "), anchor(commitURL(p.Dataset, p.Commit), text(clipped(p.Commit))), say(" / "), text(p.Path))
	case p.Commit != "":
		all = append(all, say(" / "), text(clipped(p.Commit)))
	}
	return h.P(h.Class("crumbs"), all)
}

func (p *dataPage) branches() Node {
	if len(p.Branches) == 0 {
		return quiet(say("none"))
	}
	return each(p.Branches, func(branch *string) Node {
		if *branch == p.Branch {
			return list(h.Strong(text(*branch)), say(" "))
		}
		return list(anchor(branchURL(p.Dataset, *branch), text(*branch)), say(" "))
	})
}

// readersShown lists the recipes that read a dataset, or those that make it.
func readersShown(all []reader, makes bool) Node {
	var nodes g.Group
	for _, r := range all {
		if r.Makes == makes {
			nodes = append(nodes, anchor(recipeURL(r.Recipe), text(r.Recipe)), when(r.Branch != "" && r.Branch != mainBranch, say(" "), quiet(say("at "+word(r.Branch)))), say(" "))
		}
	}
	if len(nodes) == 0 {
		return dash()
	}
	return nodes
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

func loadDataPage(v *visit) (*dataPage, error) {
	p := dataPage{Dataset: v.query("dataset"), Branch: v.query("branch"), Commit: v.query("commit"), Path: v.query("path")}
	if p.Dataset == "" {
		return &p, nil
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
	return &p, err
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

func loadDatasets(v *visit) (*datasetList, error) {
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
	atOnce(len(l.Rows), func(i int) { // one store's answer may take long
		d := all.Datasets[i]
		l.Rows[i] = datasetRow{d, newestCommit(v, d), readersOf(recipes, d.Name)}
	})
	l.NextURL, l.FirstURL = v.pageURLs("after", all.Next)
	return &l, nil
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

func showDatasets(v *visit, l *datasetList) Node {
	parts := filter("/ui/data", v.input("Name begins with", "prefix", "24", ""), submitButton("Filter"), when(l.Filtered, say(" "), anchor("/ui/data", say("All datasets"))))
	switch {
	case len(l.Rows) == 0 && l.Filtered:
		return list(parts, empty("No dataset has this name."))
	case len(l.Rows) == 0:
		return list(parts, hint{"No datasets yet.", "To commit files:", "tidemill data put DATASET FOLDER"}.node())
	}
	return list(parts, scroll("rows", heads("Dataset", "Branches", "Newest commit", "Committed", "By", "#Files", "#Size", "Read by"), rows(each(l.Rows, func(r *datasetRow) Node {
		return row(titled(r.Name), rowName(datasetLink(r.Name)), cell(each(r.Branches, func(b *string) Node { return list(anchor(branchURL(r.Name, *b), text(*b)), say(" ")) })),
			v.newest(r.Newest), cell(readersShown(r.Readers, false)))
	}))), pager("rows", l.NextURL, l.FirstURL))
}

func (v *visit) newest(c *api.Commit) Node {
	if c == nil {
		return h.Td(h.ColSpan("5"), quiet(say("cannot be read now")))
	}
	return list(cell(anchor(commitURL(c.Dataset, c.ID), say(clipped(c.ID)))), cell(v.ago(c.Time)), cell(committer(c)), figure(say(count(c.Files))), figure(say(size(c.Bytes))))
}

// committer is the run or the person that has made a commit.
func committer(c *api.Commit) Node {
	switch {
	case c.Run != "":
		return list(say("run "), runLink(c.Run))
	case c.By != "":
		return text(c.By)
	}
	return dash()
}

type commitList struct {
	api.Log
	NextURL, FirstURL string
}

func loadCommits(v *visit) (*commitList, error) {
	q := v.pick("dataset", "branch", "after")
	q.Set("limit", strconv.Itoa(pageCommits))
	log, err := get[api.Log](v, "/api/v1/data/log", q)
	if err != nil {
		return nil, err
	}
	l := commitList{Log: log}
	l.NextURL, l.FirstURL = v.pageURLs("after", log.Next)
	return &l, nil
}

func showCommits(v *visit, l *commitList) Node {
	branch := v.Q("branch")
	title := h.H2(say("Commits"), when(branch != "", say(" of "), text(branch)))
	if len(l.Commits) == 0 {
		return list(title, empty("This branch has no more commits."))
	}
	return list(title, scroll("rows", heads("Commit", "#No.", "When", "By", "Message", "#Files", "#Size", "Changes"), rows(each(l.Commits, func(c *api.Commit) Node {
		return row(c.ID, rowName(anchor(commitURL(c.Dataset, c.ID), say(clipped(c.ID)))), figure(say(fmt.Sprint(c.Number))), cell(v.ago(c.Time)), cell(committer(c)),
			cell(say(titled(c.Message))), figure(say(count(c.Files))), figure(say(size(c.Bytes))), cell(say(changesOf(c))))
	}))), pager("rows", l.NextURL, l.FirstURL))
}

// changesOf says how many files a commit adds, changes and removes.
func changesOf(c *api.Commit) string {
	var all []string
	for _, n := range []struct {
		sign  string
		files int
	}{{"+", c.Added}, {"~", c.Changed}, {"−", c.Removed}} {
		if n.files != 0 {
			all = append(all, n.sign+count(n.files))
		}
	}
	return strings.Join(all, " ")
}

// commitShown is one commit with its files and its changes.
type commitShown struct {
	api.Files
	Diff              *api.Diff // nil for a first commit
	NextURL, FirstURL string
	DiffNextURL       string
}

func loadCommit(v *visit) (*commitShown, error) {
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
		return &c, nil
	}
	q = url.Values{"dataset": q["dataset"], "from": {files.Commit.Parent}, "to": {files.Commit.ID}, "limit": {strconv.Itoa(pageFiles)}}
	if after := v.query("changed"); after != "" {
		q.Set("after", after)
	}
	diff, err := get[api.Diff](v, "/api/v1/data/diff", q)
	if isNotFound(err) { // the parent was removed
		return &c, nil
	}
	c.Diff = &diff
	c.DiffNextURL, _ = v.pageURLs("changed", diff.Next)
	return &c, err
}

func showCommit(v *visit, s *commitShown) Node {
	c := &s.Commit
	return list(
		actions(button(whyURL("commit/"+c.Dataset+"@"+c.ID), "Causes and effects"), say(" "), v.Act("branch", "dataset", c.Dataset, "from", c.ID),
			when(c.Parent != "", say(" "), button(commitURL(c.Dataset, c.Parent), "Parent"))),
		facts(
			fact("Commit", h.Code(say(c.ID))),
			fact("Branch", anchor(branchURL(c.Dataset, c.Branch), text(c.Branch)), say(fmt.Sprintf(", number %d", c.Number))),
			fact("Committed", v.ago(c.Time), by(c.By), when(c.Run != "", say(" by run "), runLink(c.Run))),
			fact("Content", say(count(c.Files)+" "+one(c.Files, "file", "files")+", "+size(c.Bytes))),
			when(c.Message != "", fact("Message", say(titled(c.Message))))),
		showDiff(s), h.H2(say("Files")), s.files())
}

func showDiff(s *commitShown) Node {
	if s.Diff == nil {
		return nil
	}
	title := h.H2(say("Changes "), quiet(say(changesOf(&s.Commit))))
	if len(s.Diff.Files) == 0 {
		return list(title, nothing(say("The files are those of its parent.")))
	}
	sizeOf := func(f *api.File) Node {
		if f == nil {
			return figure()
		}
		return figure(say(size(f.Size)))
	}
	return list(title, scroll("rows", heads("Path", "Change", "#Before", "#After"), rows(each(s.Diff.Files, func(d *api.Difference) Node {
		at := s.Commit.ID
		if d.Is == nil {
			at = s.Commit.Parent
		}
		return row(titled(d.Path), rowName(fileLink(s.Commit.Dataset, at, d.Path)), cell(say(changeOf(*d))), sizeOf(d.Was), sizeOf(d.Is))
	}))), pager("changes", s.DiffNextURL, ""))
}

func (s *commitShown) files() Node {
	if len(s.Files.Files) == 0 {
		return nothing(say("It has no files."))
	}
	return list(scroll("rows", heads("Path", "#Size", "Digest"), rows(each(s.Files.Files, func(f *api.File) Node {
		return row(titled(f.Path), rowName(fileLink(s.Commit.Dataset, s.Commit.ID, f.Path), when(f.Executable, say(" "), quiet(say("executable")))), figure(say(size(f.Size))), cell(h.Code(say(clipped(f.Digest)))))
	}))), pager("rows", s.NextURL, s.FirstURL))
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

func loadFile(v *visit) (*look, error) {
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

func showFile(v *visit, l *look) Node {
	return list(lead(say(l.Kind+", "+size(l.Size)+" "), h.A(h.Class("button"), g.Attr("data-download"), h.Href(l.URL), say("Download"))),
		when(l.Note != "", note(say(l.Note))), l.content(v))
}

func (l *look) content(v *visit) Node {
	name := titled(v.Q("path"))
	switch {
	case l.Image && v.caller.Name != "": // an image of its own could not send the token
		return g.El("tm-image", h.Data("src", l.URL), h.Data("name", name), download(l.URL, say("Download the image")))
	case l.Image:
		return h.Img(h.Class("shown"), h.Src(l.URL), h.Alt(name))
	case l.Columns != nil:
		return scroll("", headRow(each(l.Columns, func(c *string) Node { return head(text(*c)) })), rows(each(l.Rows, func(r *[]string) Node {
			return h.Tr(each(*r, func(value *string) Node { return cell(text(*value)) }))
		})))
	case l.Hex != "":
		return h.Pre(h.Class("hex"), say(l.Hex))
	case l.Text != "":
		return h.Pre(h.Class("file"), say(l.Text))
	}
	return nil
}

func branchURL(dataset, branch string) string {
	return queryURL("/ui/data", "dataset", dataset, "branch", branch)
}

func commitURL(dataset, commit string) string {
	return queryURL("/ui/data", "dataset", dataset, "commit", commit)
}

func datasetLink(name string) markup { return link(dataURL(name), name) }

// fileLink leads to the look into a file.
func fileLink(dataset, commit, path string) markup {
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
