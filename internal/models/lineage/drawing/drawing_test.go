package drawing_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

func when(t time.Time) string { return t.Format("15:04:05") }

func noon(minutes int) *time.Time {
	t := time.Date(2026, 11, 22, 12, minutes, 0, 0, time.UTC)
	return &t
}

// story is a version with all its causes, a commit that two paths lead to, and the version that
// replaced it.
func story() *api.Graph {
	return &api.Graph{
		Subject: "model/intent/bot-42@7",
		Nodes: []api.GraphNode{
			{ID: "model/intent/bot-42@7", Kind: api.KindModel, Title: "model intent/bot-42@7", State: "was champion", Time: noon(4),
				Says: []string{"accuracy 0.91, macroF1 0.9", "promoted by its gate"}, Said: "promoted: accuracy 0.91 is at least 0.85, and version 6 had 0.9 on the same data"},
			{ID: "run/qny5ivtqix", Kind: api.KindRun, Title: "run qny5ivtqix", State: "succeeded", Time: noon(3), Says: []string{"recipe intent for bot-42", "attempt 1, 12.3s"}},
			{ID: "model/intent/bot-42@6", Kind: api.KindModel, Title: "model intent/bot-42@6", State: "was champion", Time: noon(0)},
			{ID: "commit/bots/bot-42@9f3abc", Kind: api.KindCommit, Title: "commit 9f3abc of bots/bot-42 (main)", State: "committed", Time: noon(1),
				Says: []string{"412 files, 1.2 MiB", "by curl"}, Said: "more of what people say when it rains"},
			{ID: "code/dir:3f2a@8c1", Kind: api.KindCode, Title: "code dir:3f2a", Says: []string{"python train.py", "config 8c1"}},
			{ID: "node/laptop", Kind: api.KindNode, Title: "node laptop"},
			{ID: "event//crm#e-1", Kind: api.KindEvent, Title: "event new-data of bot-42 (e-1 from /crm)", Time: noon(1)},
			{ID: "model/intent/bot-42@8", Kind: api.KindModel, Title: "model intent/bot-42@8", State: "champion", Time: noon(9)},
		},
		Edges: []api.GraphEdge{
			{From: "run/qny5ivtqix", To: "model/intent/bot-42@7", What: api.EdgeMade},
			{From: "model/intent/bot-42@6", To: "model/intent/bot-42@7", What: api.EdgeJudged},
			{From: "commit/bots/bot-42@9f3abc", To: "run/qny5ivtqix", What: api.EdgeTaught},
			{From: "code/dir:3f2a@8c1", To: "run/qny5ivtqix", What: api.EdgeCode},
			{From: "node/laptop", To: "run/qny5ivtqix", What: api.EdgeRan},
			{From: "event//crm#e-1", To: "run/qny5ivtqix", What: api.EdgeAsked},
			{From: "commit/bots/bot-42@9f3abc", To: "event//crm#e-1", What: api.EdgeTold},
			{From: "model/intent/bot-42@7", To: "model/intent/bot-42@8", What: api.EdgeReplaced},
		},
		Notes: []string{"2 events more asked for run qny5ivtqix"},
	}
}

type draw func(io.Writer, *api.Graph, drawing.When) error

func drawn(t testing.TB, d draw, g *api.Graph) string {
	t.Helper()
	var b bytes.Buffer
	if err := d(&b, g, when); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// UPDATE_GOLDENS=1 writes the goldens again.
func TestAStoryIsDrawn(t *testing.T) {
	t.Parallel()
	alone := &api.Graph{Subject: "run/abc", Nodes: []api.GraphNode{{ID: "run/abc", Kind: api.KindRun, Title: "run abc", State: "waiting", Time: noon(0)}}}
	for name, d := range map[string]draw{"txt": drawing.Tree, "dot": drawing.DOT, "svg": drawing.SVG} {
		for file, g := range map[string]*api.Graph{"story": story(), "alone": alone} {
			got, golden := drawn(t, d, g), filepath.Join("testdata", file+"."+name)
			if os.Getenv("UPDATE_GOLDENS") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s is\n%s\nwant\n%s", golden, got, want)
			}
		}
	}
}

// hostile returns a graph whose texts would control a terminal, a browser or Graphviz.
func hostile() *api.Graph {
	const evil = "a\"]; evil [label=\"\\\" \\N \x1b[2J\x1b]0;x\a<script>alert(1)</script> & ]]> --> </svg> ' \u202e\u2028\n}\nbad -> worse;\n\\"
	g := &api.Graph{Subject: "run/1" + evil, Notes: []string{evil}}
	for i := range 3 {
		g.Nodes = append(g.Nodes, api.GraphNode{ID: fmt.Sprintf("run/%d%s", i, evil), Kind: api.GraphKind(evil), Title: evil, State: evil, Says: []string{evil, "\xff\xfe\x00"}, Said: evil,
			Facts: map[string]string{evil: evil}})
	}
	g.Edges = []api.GraphEdge{{From: g.Nodes[0].ID, To: g.Nodes[1].ID, What: api.GraphRelation(evil)}, {From: g.Nodes[1].ID, To: g.Nodes[2].ID, What: api.EdgeMade},
		{From: g.Nodes[2].ID, To: g.Nodes[0].ID, What: api.EdgeMade}, {From: "nobody", To: g.Nodes[0].ID, What: api.EdgeMade}}
	return g
}

func TestATerminalObeysNothing(t *testing.T) {
	t.Parallel()
	for _, d := range []draw{drawing.Tree, drawing.DOT, drawing.SVG} {
		for _, r := range drawn(t, d, hostile()) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("%q is drawn", r)
			}
		}
	}
	tree := drawn(t, drawing.Tree, hostile())
	for line := range strings.Lines(tree) {
		if strings.HasPrefix(line, "bad -> worse") || strings.HasPrefix(line, "}") {
			t.Errorf("a text has lines of its own:\n%s", tree)
		}
	}
}

// A cycle ends, although causes and effects have no cycles.
func TestACircleEnds(t *testing.T) {
	t.Parallel()
	g := &api.Graph{Subject: "a", Nodes: []api.GraphNode{{ID: "a", Title: "a"}, {ID: "b", Title: "b"}},
		Edges: []api.GraphEdge{{From: "a", To: "b", What: api.EdgeMade}, {From: "b", To: "a", What: api.EdgeMade}, {From: "a", To: "a", What: api.EdgeMade}}}
	if tree := drawn(t, drawing.Tree, g); strings.Count(tree, "(see above)") != 4 {
		t.Errorf("the tree is\n%s", tree)
	}
	drawn(t, drawing.SVG, g)
	drawn(t, drawing.DOT, g)
}

// Long texts are cut to a readable length.
func TestLongTextsAreCut(t *testing.T) {
	t.Parallel()
	g := story()
	g.Nodes[0].Said, g.Nodes[0].Says = strings.Repeat("ü", 100_000), []string{strings.Repeat("x", 100_000)}
	for _, d := range []draw{drawing.Tree, drawing.DOT, drawing.SVG} {
		if n := len(drawn(t, d, g)); n > 20_000 {
			t.Errorf("%d bytes are drawn", n)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestAWriterThatFailsIsTold(t *testing.T) {
	t.Parallel()
	for _, d := range []draw{drawing.Tree, drawing.DOT, drawing.SVG} {
		if err := d(broken{}, story(), when); err != io.ErrClosedPipe {
			t.Errorf("%v", err)
		}
	}
}
