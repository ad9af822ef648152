package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"tidemill.dev/internal/cli/connect"
)

// The program understands the chart's pods: each list of arguments parses, and each TIDEMILL_
// variable belongs to a flag.
func TestChartSpeaksOurLanguage(t *testing.T) {
	files, err := filepath.Glob("../../charts/testdata/*.golden.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("nothing was rendered: %v", err)
	}
	parsed := 0
	for _, file := range files {
		for _, c := range containersIn(t, file) {
			t.Run(filepath.Base(file)+"/"+strings.Join(c.Args[:min(3, len(c.Args))], " "), func(t *testing.T) { c.check(t) })
			parsed++
		}
	}
	if parsed < 8*len(files) {
		t.Errorf("%d containers in %d files: that is not all of them", parsed, len(files))
	}
}

// chartContainer is the part of a container that concerns our program.
type chartContainer struct {
	Args []string
	Env  []struct{ Name, Value string }
}

// containersIn returns all containers of all objects in a file, at any depth.
func containersIn(t *testing.T, file string) (all []chartContainer) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var object yaml.Node
		switch err := d.Decode(&object); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, containersOf(t, &object)...)
	}
}

func containersOf(t *testing.T, n *yaml.Node) (all []chartContainer) {
	t.Helper()
	for i, child := range n.Content {
		named := n.Kind == yaml.MappingNode && i%2 == 1 && slices.Contains([]string{"containers", "initContainers"}, n.Content[i-1].Value)
		if !named {
			all = append(all, containersOf(t, child)...)
			continue
		}
		var here []chartContainer
		if err := child.Decode(&here); err != nil {
			t.Fatal(err)
		}
		all = append(all, here...)
	}
	return all
}

func (c *chartContainer) check(t *testing.T) {
	env := map[string]string{}
	for _, v := range c.Env {
		if env[v.Name] = v.Value; v.Value == "" {
			env[v.Name] = "from-a-secret"
		}
	}
	args := slices.Clone(c.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(TEST)", "a-uid")
	}
	asked := map[string]bool{}
	called, err := parse(args, func(name string) string {
		asked[name] = true
		return env[name]
	})
	if err != nil {
		t.Fatalf("tidemill %s: %v", strings.Join(args, " "), err)
	}
	for name := range env {
		if strings.HasPrefix(name, "TIDEMILL_") && !asked[name] && !slices.Contains([]string{connect.EnvToken, connect.EnvURL}, name) {
			t.Errorf("nobody asks for the variable %s", name)
		}
	}
	if s, ok := called.program.(*serving); ok {
		if err := s.complete(); err != nil {
			t.Errorf("tidemill %s: %v", strings.Join(args, " "), err)
		}
	}
}

// complete makes the checks that run makes before it opens anything.
func (r *serving) complete() error {
	if r.Addresses.Kafka == "" || r.Addresses.Redis == "" {
		return fmt.Errorf("Kafka is %q and Redis is %q", r.Addresses.Kafka, r.Addresses.Redis)
	}
	if r.role == gatewayRole && r.door.Access == "" {
		return errors.New("everybody may everything")
	}
	return r.needs(r.Addresses)
}
