package recipe

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is Go's description of a go.mod.
type module struct {
	Require []struct{ Path, Version string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
	Tool []struct{ Path string }
}

// TestReplaces compares our go.mod with Kubernetes' own. Each module in its tree must be replaced
// by the one published for that release; otherwise `go build` takes the newest.
func TestReplaces(t *testing.T) {
	ours, theirs := moduleAt(t, "../../go.mod"), moduleAt(t, goModOf(t, "k8s.io/kubernetes"))
	want := "v0" + strings.TrimPrefix(version, "v1")
	for _, r := range theirs.Replace {
		if !strings.HasPrefix(r.New.Path, "./staging/") {
			continue
		}
		if got := ours.replaced(r.Old.Path); got != want {
			t.Errorf("%s is replaced by %q, want %s; add it to go.mod", r.Old.Path, got, want)
		}
	}
	if got := ours.required("k8s.io/kubernetes"); got != version {
		t.Errorf("go.mod has Kubernetes %s, and its commands will say that they are %s", got, version)
	}
}

// TestTools compares the built programs with go.mod's tools, which keep their modules in go.mod.
func TestTools(t *testing.T) {
	ours := moduleAt(t, "../../go.mod")
	built := slices.Concat(programs[:], images[:])
	for _, p := range built {
		isTool := slices.ContainsFunc(ours.Tool, func(tool struct{ Path string }) bool { return tool.Path == p.Package })
		if own := strings.HasPrefix(p.Package, "./"); own == isTool {
			t.Errorf("%s: it is of our own: %t, and among go.mod's tools: %t", p.Package, own, isTool)
		}
	}
	if of := moduleAt(t, "../../kwok/go.mod"); len(of.Tool) != 1 || of.Tool[0].Path != kwok.Package {
		t.Errorf("kwok's module has the tools %v, want %s", of.Tool, kwok.Package)
	}
	for _, tool := range ours.Tool {
		if !slices.ContainsFunc(built, func(p program) bool { return p.Package == tool.Path }) {
			t.Errorf("go.mod has the tool %s, which nothing builds", tool.Path)
		}
	}
}

// TestOwnIsWhole checks that the hash covers all of our own programs, because otherwise a change
// would not rebuild them.
func TestOwnIsWhole(t *testing.T) {
	for _, p := range slices.Concat(programs[:], images[:]) {
		folder, own := strings.CutPrefix(p.Package, "./")
		if own && !slices.Contains(ownFolders[:], folder) {
			t.Errorf("%s is built from a folder that does not count for the hash", p.Name)
		}
	}
}

func (m module) replaced(path string) string {
	for _, r := range m.Replace {
		if r.Old.Path == path {
			return r.New.Version
		}
	}
	return ""
}

func (m module) required(path string) string {
	for _, r := range m.Require {
		if r.Path == path {
			return r.Version
		}
	}
	return ""
}

func moduleAt(t *testing.T, file string) module {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	var m module
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func goModOf(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.GoMod}}", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
