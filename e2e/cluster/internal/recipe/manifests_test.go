package recipe

import (
	"strings"
	"testing"
)

func TestNamed(t *testing.T) {
	for given, want := range map[string]string{
		"image: ko://knative.dev/serving/cmd/queue":                         "image: dev.local/queue:v1",
		"a: ko://knative.dev/serving/cmd/activator\nb: c":                   "a: dev.local/activator:v1\nb: c",
		"image: docker.io/somebody/something:v1":                            "image: docker.io/somebody/something:v1",
		"x: ko://knative.dev/serving/cmd/a ko://knative.dev/eventing/cmd/b": "x: dev.local/a:v1 ko://knative.dev/eventing/cmd/b",
	} {
		if got := string(named([]byte(given))); got != want {
			t.Errorf("%q becomes %q, want %q", given, got, want)
		}
	}
}

func TestJoin(t *testing.T) {
	all := join(nil, []byte("---\na: 1\n\n"))
	all = join(all, []byte("\nb: 2\n---\nc: 3"))
	if got, want := string(all), "a: 1\n---\nb: 2\n---\nc: 3\n---\n"; got != want {
		t.Errorf("joined they are %q, want %q", got, want)
	}
}

func TestIsReplaced(t *testing.T) {
	for file, want := range map[string]bool{
		"/m/config/core/configmaps/autoscaler.yaml":  true,
		"/m/config/core/deployments/autoscaler.yaml": false,
		"/m/config/core/configmaps/features.yaml":    false,
	} {
		if got := isReplaced(file); got != want {
			t.Errorf("%s is replaced: %t", file, got)
		}
	}
}

// TestGatheredManifests reads Knative's files. It fails if a new version moves or renames one, or
// has an image that we do not build.
func TestGatheredManifests(t *testing.T) {
	m := maker{source: "../.."}
	for _, c := range []struct {
		name    string
		from    maker
		sources []source
	}{{"types", m, types}, {"objects", m, objects}, {"stages", m.ofKwok(), stages}} {
		data, err := c.from.gather(t.Context(), c.sources)
		if err != nil {
			t.Fatal(err)
		}
		name := c.name
		if strings.Contains(string(data), "ko://") {
			t.Errorf("%s name an image of ko's", name)
		}
		for _, line := range strings.Split(string(data), "\n") {
			if _, image, found := strings.Cut(line, "dev.local/"); found && !isBuilt(strings.TrimSuffix(image, ":v1")) {
				t.Errorf("%s have %q, which is not built", name, strings.TrimSpace(line))
			}
		}
	}
}

func isBuilt(name string) bool {
	for _, p := range images {
		if p.Name == name {
			return true
		}
	}
	return false
}

func TestInstalled(t *testing.T) {
	plan := "NOTE: This is only a simulation!\nInst libnftables1 (1.0.6 Debian:12 [amd64])\nInst runc (1.1.5 Debian:12 [amd64])\nConf runc (1.1.5)\nRemv docker [1]\n"
	if got := strings.Join(installed([]byte(plan)), " "); got != "libnftables1 runc" {
		t.Errorf("it would install %q", got)
	}
}
