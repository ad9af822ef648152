package dashboard

import (
	"io/fs"
	"net/http"
	"regexp"
	"strings"

	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
	"tidemill.dev/docs/runbooks"
)

// runbook is a page for the person who is called.
type runbook struct {
	Name, Title string
	Blocks      []block
}

// block is a part of a runbook: a heading, a paragraph, lines for a shell, or a table. Only one field is set.
type block struct {
	Heading, Text, Code string
	Rows                [][]string // the first has the names of the columns
}

func loadRunbook(v *visit) (*runbook, error) {
	name := v.PathValue("name")
	text, err := fs.ReadFile(runbooks.Files(), name+".md")
	if err != nil {
		return nil, &api.Problem{Status: http.StatusNotFound, Title: "there is no such runbook", Detail: "the page Health lists all runbooks"}
	}
	title, rest, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
	return &runbook{name, title, blocksOf(rest)}, nil
}

func showRunbook(_ *view, r *runbook) Node {
	return list(h.H1(say(r.Title)), h.P(h.Class("crumbs"), anchor("/ui/health", say("Health")), say(" / "), text(r.Name)),
		h.Div(h.Class("runbook"), each(r.Blocks, (*block).node)))
}

func (b *block) node() Node {
	switch {
	case b.Heading != "":
		return h.H2(say(b.Heading))
	case b.Code != "":
		return h.Pre(say(b.Code))
	case b.Rows == nil:
		return h.P(prose(b.Text))
	}
	return scroll("", headRow(each(b.Rows[0], func(text *string) Node { return head(prose(*text)) })), rows(each(b.Rows[1:], func(r *[]string) Node {
		return h.Tr(each(*r, func(text *string) Node { return cell(prose(*text)) }))
	})))
}

// blocksOf reads the few forms of Markdown that the runbooks have. Anything else stays text.
func blocksOf(text string) (all []block) {
	fresh := true // whether the next line of text begins a paragraph
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		last := len(all) - 1
		was := fresh
		fresh = true
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "```"):
			if code = !code; code {
				all = append(all, block{})
			}
		case code:
			all[last].Code += line + "\n"
		case strings.HasPrefix(line, "## "):
			all = append(all, block{Heading: line[3:]})
		case strings.HasPrefix(line, "|---"), trimmed == "":
		case strings.HasPrefix(line, "|"):
			if last < 0 || all[last].Rows == nil {
				all = append(all, block{})
				last++
			}
			all[last].Rows = append(all[last].Rows, cellsOf(line))
		case was || newItem.MatchString(line):
			all, fresh = append(all, block{Text: trimmed}), false
		default:
			all[last].Text += " " + trimmed
			fresh = false
		}
	}
	return all
}

var (
	newItem  = regexp.MustCompile(`^(\d+\.|-) `)           // read only
	markLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`) // read only
)

// cellsOf returns the cells of a row of a table.
func cellsOf(line string) (cells []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "| "), "|") {
		cells = append(cells, strings.TrimSpace(cell))
	}
	return cells
}

// prose shows text of a runbook, with its code and without the addresses of its links.
func prose(text string) markup {
	var b strings.Builder
	for i, part := range strings.Split(markLink.ReplaceAllString(text, "$1"), "`") {
		if i%2 == 1 {
			b.WriteString("<code>" + esc(part) + "</code>")
			continue
		}
		b.WriteString(esc(part))
	}
	return markup(b.String())
}
