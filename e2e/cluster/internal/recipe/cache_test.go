package recipe

import (
	"os"
	"path/filepath"
	"testing"
)

func TestForgetOthers(t *testing.T) {
	k := kit{prefix: "cluster-"}
	root := t.TempDir()
	for _, name := range []string{"cluster-0123456789abcdef", "cluster-fedcba9876543210", "cluster-fedcba9876543210.part", "cluster-lock", "cluster", "kafka-4.3.1"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	used := filepath.Join(root, "cluster-aaaaaaaaaaaaaaaa")
	if err := os.Mkdir(used, 0o755); err != nil {
		t.Fatal(err)
	}
	held, err := Cache(used).Hold()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.forgetOthers(filepath.Join(root, "cluster-0123456789abcdef")); err != nil {
		t.Fatal(err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range left {
		names = append(names, filepath.Base(path))
	}
	want := []string{"cluster", "cluster-0123456789abcdef", "cluster-aaaaaaaaaaaaaaaa", "cluster-lock", "kafka-4.3.1"}
	if len(names) != len(want) {
		t.Fatalf("left are %v, want %v", names, want)
	}
	for i := range want {
		if names[i] != want[i] {
			t.Errorf("left are %v, want %v", names, want)
		}
	}
}

// TestRecipeHash changes each thing that a build depends on.
func TestRecipeHash(t *testing.T) {
	source := t.TempDir()
	for _, name := range ownFolders {
		path := filepath.Join(source, name)
		if filepath.Ext(name) == "" {
			path = filepath.Join(path, "main.go")
		}
		write(t, path, name)
	}
	seen := map[string]string{hash(t, source): "the first"}
	for _, path := range []string{"go.mod", "go.sum", "ingress/main.go", "internal/recipe/main.go", "internal/recipe/manifests/new.yaml"} {
		write(t, filepath.Join(source, path), "another "+path)
		got := hash(t, source)
		if same, found := seen[got]; found {
			t.Errorf("with another %s the hash is that of %s", path, same)
		}
		seen[got] = path
	}
	write(t, filepath.Join(source, "ingress/main_test.go"), "a test")
	if _, found := seen[hash(t, source)]; !found {
		t.Error("a test changes the hash")
	}
	if _, err := (kit{folders: ownFolders[:]}).hash(t.TempDir()); err == nil {
		t.Error("a folder without a recipe has a hash")
	}
}

func hash(t *testing.T, source string) string {
	t.Helper()
	got, err := kit{folders: ownFolders[:]}.hash(source)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
