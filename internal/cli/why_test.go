package cli

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestSlipsInCallsOfWhy(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"why":                                "KIND/ID is missing",
		"why run/abcdef model/a":             "one argument too many",
		"why run/abcdef -o xml":              "xml",
		"why run/abcdef --graph png":         "give dot or svg",
		"why run/abcdef --graph svg -o json": "is not JSON",
	} {
		if o := call(t, "", strings.Fields(args)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}

// why shows a run as a tree, as JSON, and as pictures.
func TestWhyByCommand(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, runsConfig)
	r := runsAt{t, filepath.Join(dir, "data")}
	startUp(t, r.data, "-f", file)
	r.ok("runs", "start", "intent", "--key", "bot-1")
	id := r.is("bot-1", tidemill.RunSucceeded)
	run := "run/" + id
	var g api.Graph
	if err := json.Unmarshal([]byte(r.ok("why", run, "-o", "json")), &g); err != nil || g.Subject != run || g.Nodes[0].Facts["recipe"] != "intent" || len(g.Edges) < 3 {
		t.Errorf("%v, %+v", err, g)
	}
	mention(t, "the tree", r.ok("why", run[:len("run/")+8]), run+" · succeeded at ", "recipe intent for bot-1", "because\n├ ran code sha256:", "├ on node ", "└ requested by event ", "\nfrom it")
	if o := r.call("why", "foo"); o.code != exitFailed || !strings.HasPrefix(o.err, "tidemill: trace foo: \"foo\" names nothing that can be traced") {
		t.Errorf("why foo: %+v", o)
	}
	mention(t, "DOT", r.ok("why", run, "--graph", "dot"), "digraph why {", `"`+run+`" [label="run `)
	picture := filepath.Join(t.TempDir(), "why.svg")
	r.ok("why", run, "--graph", "svg", "--out", picture)
	svg, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for err == nil {
		_, err = d.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("%v in\n%s", err, svg)
	}
	mention(t, "the SVG", string(svg), "<svg xmlns=", "<title>"+run+"</title>")
	eventually(t, func() bool {
		return strings.Contains(r.call("why", "model/intent/bot-1").out, "model/intent/bot-1@1 · champion since ")
	})
	mention(t, "a model", r.ok("why", "model/intent/bot-1@champion"), "accuracy 0.93", "promoted without a gate", "\n└ made by run "+id[:10]+" · succeeded at ", "\n  ├ ran code sha256:", "\n  └ requested by event ")
	mention(t, "the run", r.ok("why", run), "\nfrom it\n└ made model intent/bot-1@1 · champion since ")
	for args, says := range map[string]string{
		"why model/no":   "it is not known, or you may not see it",
		"why pool/small": "give run/ID",
		"why " + run + " --out " + filepath.Join(picture, "no"): "write why",
	} {
		if o := r.call(strings.Fields(args)...); o.code != exitFailed || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q", args, o.code, o.err)
		}
	}
}
