package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// clause is a part of a sentence, up to a full stop, a semicolon or a colon.
type clause struct {
	file      string
	line, end int
	kind      kind
	text      string
}

// isIn reports whether one of the clause's lines was added; a file without a list
// of lines is new.
func (c *clause) isIn(added map[string]map[int]bool) bool {
	lines, ok := added[c.file]
	for n := c.line; ok && lines != nil && n <= c.end; n++ {
		if lines[n] {
			return true
		}
	}
	return ok && lines == nil
}

// clausesIn reads a file by its name's ending.
func clausesIn(file string, data []byte) []clause {
	r := &reader{file: file}
	text := string(data)
	switch ext := path.Ext(file); {
	case ext == ".go":
		r.goFile(data)
	case ext == ".md":
		r.markdown(text)
	case ext == ".s":
		r.lineComments(text, "//")
	case ext == ".lua":
		r.lineComments(text, "--")
	case slices.Contains([]string{".yaml", ".yml", ".sh", ".py", ".tpl", ".toml"}, ext),
		path.Base(file) == "Makefile", strings.HasPrefix(file, ".ci/") && ext == "", path.Base(file) == "Dockerfile":
		r.lineComments(text, "#")
	}
	return r.clauses
}

type reader struct {
	file    string
	clauses []clause

	words []word // unfinished block
}

type word struct {
	text string
	line int
}

func (r *reader) add(line int, text string) {
	for _, w := range strings.Fields(text) {
		r.words = append(r.words, word{w, line})
	}
}

// block ends a block of text and cuts it into clauses. Those of less than four
// words are left out: they are names and numbers.
func (r *reader) block(k kind) {
	from := 0
	for i, w := range r.words {
		ends := strings.ContainsAny(w.text[len(w.text)-1:], ".;:?!")
		if !ends && i+1 < len(r.words) {
			continue
		}
		if part := r.words[from : i+1]; len(part) >= 4 {
			texts := make([]string, len(part))
			for j := range part {
				texts[j] = part[j].text
			}
			r.clauses = append(r.clauses, clause{r.file, part[0].line, w.line, k, strings.Join(texts, " ")})
		}
		from = i + 1
	}
	r.words = r.words[:0]
}

// goFile reads the comments of a Go file and, unless it is a test, its texts.
func (r *reader) goFile(data []byte) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, r.file, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		r.lineComments(string(data), "//") // the compiler reports it
		return
	}
	lines := strings.Split(string(data), "\n")
	for _, group := range parsed.Comments {
		r.commentGroup(files, lines, group)
	}
	if strings.HasSuffix(r.file, "_test.go") {
		return
	}
	g := &goTexts{reader: r, files: files, seen: map[token.Pos]bool{}, otherwise: otherText}
	if strings.HasPrefix(r.file, "internal/cli/") || strings.HasPrefix(r.file, "cmd/") {
		g.otherwise = commandText
	}
	ast.Inspect(parsed, g.look)
}

var directive = regexp.MustCompile(`^//([a-z]+:|lint|#)`)

func (r *reader) commentGroup(files *token.FileSet, lines []string, group *ast.CommentGroup) {
	at := files.Position(group.Pos())
	k := comment
	if strings.TrimSpace(lines[at.Line-1][:at.Column-1]) != "" {
		k = fieldComment
	}
	for _, c := range group.List {
		if directive.MatchString(c.Text) {
			continue
		}
		line := files.Position(c.Pos()).Line
		text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(c.Text, "/*"), "//"), "*/")
		for one := range strings.Lines(text) {
			switch trimmed := strings.TrimSpace(one); {
			case trimmed == "":
				r.block(k)
			case strings.HasPrefix(one, "\t") || strings.HasPrefix(one, "    "): // an example
				r.block(k)
			default:
				if strings.HasPrefix(trimmed, "- ") {
					r.block(k)
				}
				r.add(line, withoutCode(trimmed))
			}
			line++
		}
	}
	r.block(k)
}

// goTexts finds the strings of a Go file that are sentences.
type goTexts struct {
	*reader
	files     *token.FileSet
	seen      map[token.Pos]bool
	otherwise kind
}

var logMethods = regexp.MustCompile(`^(Debug|Info|Warn|Error|Log|LogAttrs)(Context)?$`)

func (g *goTexts) look(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.Field:
		if n.Tag != nil {
			g.seen[n.Tag.Pos()] = true
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && logMethods.MatchString(f.Sel.Name) {
			for _, argument := range n.Args {
				g.texts(argument, logMessage)
			}
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Short" {
			g.texts(n.Value, summary)
		} else if ok && (key.Name == "Long" || key.Name == "Usage") {
			g.texts(n.Value, commandText)
		}
	case ast.Expr:
		g.joined(n, g.otherwise)
	}
	return true
}

// texts reads the strings within an expression as those of a kind.
func (g *goTexts) texts(within ast.Expr, k kind) {
	ast.Inspect(within, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			g.joined(e, k)
		}
		return true
	})
}

// joined reads one string, or several with + between them.
func (g *goTexts) joined(e ast.Expr, k kind) {
	switch e := e.(type) {
	case *ast.BasicLit:
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return
		}
	default:
		return
	}
	if g.seen[e.Pos()] {
		return
	}
	g.literals(e)
	g.block(k)
}

func (g *goTexts) literals(e ast.Expr) {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		g.literals(e.X)
		g.literals(e.Y)
	case *ast.BasicLit:
		g.seen[e.Pos()] = true
		text, err := strconv.Unquote(e.Value)
		if e.Kind != token.STRING || err != nil || !isSentence(text) {
			return
		}
		line := g.files.Position(e.Pos()).Line
		for one := range strings.Lines(text) {
			g.add(line, withoutCode(one))
			if strings.HasPrefix(e.Value, "`") {
				line++
			}
		}
	}
}

// isSentence tells sentences from patterns, scripts and markup.
func isSentence(text string) bool {
	letters := 0
	for _, c := range text {
		if unicode.IsLetter(c) || c == ' ' {
			letters++
		}
	}
	return strings.Contains(text, " ") && !strings.Contains(text, "|") && letters*10 >= len(text)*7
}

var code = regexp.MustCompile("`[^`]*`|\\*\\w+\\*")

// withoutCode puts a plain word where code or a word is quoted.
func withoutCode(text string) string { return code.ReplaceAllString(text, "CODE") }

func (r *reader) markdown(text string) {
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~") {
			fenced = !fenced
			r.block(documentation)
			continue
		}
		switch {
		case fenced:
		case trimmed == "", strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "<"):
			r.block(documentation)
			r.add(i+1, strings.TrimLeft(trimmed, "# "))
			if trimmed != "" {
				r.block(documentation)
			}
		case strings.HasPrefix(trimmed, "|"):
			r.block(documentation)
			for cell := range strings.SplitSeq(withoutCode(trimmed), "|") {
				r.add(i+1, cell)
				r.block(documentation)
			}
		default:
			if listItem.MatchString(trimmed) {
				r.block(documentation)
			}
			r.add(i+1, withoutCode(trimmed))
		}
	}
	r.block(documentation)
}

var listItem = regexp.MustCompile(`^([-*+]|\d+\.) `)

// lineComments reads comments that begin with a mark and end with their line. Those
// of consecutive lines are one block.
func (r *reader) lineComments(text, mark string) {
	for i, line := range strings.Split(text, "\n") {
		before, after, ok := strings.Cut(" "+line, " "+mark)
		if !ok || strings.TrimSpace(before) == "" && strings.HasPrefix(after, "!") {
			r.block(comment)
			continue
		}
		own := strings.TrimSpace(strings.Trim(before, "\t")) != ""
		if own {
			r.block(comment)
		}
		r.add(i+1, withoutCode(strings.TrimLeft(after, mark+" ")))
		if own {
			r.block(comment)
		}
	}
	r.block(comment)
}
