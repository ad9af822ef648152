package kube

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/scheduler"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

// jobCase is the content of a file in testdata/jobs.
type jobCase struct {
	Attempt scheduler.Attempt
	Pool    config.Pool
}

// Each testdata/jobs/NAME.yaml is an attempt and its pool. NAME.golden has its objects for the
// cluster, or the error. To add a case, add the file, run with -update and read the golden file.
func TestManifests(t *testing.T) {
	names, err := filepath.Glob("testdata/jobs/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			c := jobCase{Attempt: anAttempt()}
			if err := yaml.UnmarshalStrict(text, &c); err != nil {
				t.Fatal(err)
			}
			matchGolden(t, strings.TrimSuffix(name, ".yaml")+".golden", manifests(t, aSite(t), c))
		})
	}
}

func aSite(t testing.TB) site {
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	return site{names: names, namespace: "models", gateway: "http://tidemill-gateway.models:8080", image: "registry.example/tidemill:1"}
}

func anAttempt() scheduler.Attempt {
	const run = "3qv7xw2zj5k6n4m2c7d5f6g3ha"
	return scheduler.Attempt{Name: tidemill.AttemptName(run, 1), Run: run, Recipe: "intent", Key: "bot-42", Number: 1, Token: "a-token"}
}

// manifests returns all objects of a case.
func manifests(t *testing.T, s site, c jobCase) string {
	t.Helper()
	if err := check(c.Attempt.Plan, nil); err != nil {
		return "# " + err.Error() + "\n"
	}
	job := s.job(c.Attempt, c.Pool)
	owner := job.DeepCopy()
	owner.UID = "11111111-2222-3333-4444-555555555555"
	all := []runtime.Object{job, s.secret(c.Attempt, owner)}
	if hasSeveralPods(c.Attempt.Plan) {
		all = append(all, s.policy(c.Attempt, owner), s.service(c.Attempt, owner))
		if c.Attempt.Plan.Servers != nil {
			all = append(all, s.serverJob(c.Attempt, c.Pool, owner))
		}
	}
	return toYAML(t, all)
}

// toYAML returns objects as YAML for kubectl.
func toYAML(t *testing.T, all []runtime.Object) string {
	t.Helper()
	scheme, err := kinds()
	if err != nil {
		t.Fatal(err)
	}
	out := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true})
	var b bytes.Buffer
	for i, o := range all {
		found, _, err := scheme.ObjectKinds(o)
		if err != nil {
			t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(found[0])
		if i > 0 {
			b.WriteString("---\n")
		}
		if err := out.Encode(o, &b); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func matchGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// An attempt has exactly the same manifests each time.
func TestManifestsAreTheSameEveryTime(t *testing.T) {
	c := jobCase{Attempt: anAttempt(), Pool: config.Pool{Name: "gpu", Nodes: map[string]string{"a": "b", "c": "d", "e": "f"}}}
	c.Attempt.Plan = tidemill.Plan{Image: "i", Command: []string{"c"}, Workers: 2, Servers: &tidemill.Servers{Count: 2},
		Secrets: map[string]string{"A": "a/b", "B": "a/c", "C": "a/d", "D": "a/e"}}
	first := manifests(t, aSite(t), c)
	for range 20 {
		if again := manifests(t, aSite(t), c); again != first {
			t.Fatalf("got\n%s\nbut first\n%s", again, first)
		}
	}
}

// A run that writes without end is ended before the disk of its node is full.
func TestNoRunFillsItsNode(t *testing.T) {
	c := jobCase{Attempt: attemptTogether(), Pool: config.Pool{Name: "gpu"}}
	c.Attempt.Plan.Inside.Shm = 1 << 30
	s := aSite(t)
	for _, disk := range []int64{0, 300 << 30} {
		c.Attempt.Plan.Inside.Disk = disk
		job := s.job(c.Attempt, c.Pool)
		for _, j := range []*batchv1.Job{job, s.serverJob(c.Attempt, c.Pool, job)} {
			pod := j.Spec.Template.Spec
			for _, one := range slices.Concat(pod.InitContainers, pod.Containers) {
				asks, may := one.Resources.Requests.StorageEphemeral(), one.Resources.Limits.StorageEphemeral()
				if asks.IsZero() || may.IsZero() || asks.Cmp(*may) > 0 {
					t.Errorf("%s: the container %s requests %s of disk and may use %s", j.Name, one.Name, asks, may)
				}
				if one.Name == containerRun && disk > 0 && (asks.Value() != disk || may.Value() != disk) {
					t.Errorf("%s: the recipe says %d, and the container requests %s and may use %s", j.Name, disk, asks, may)
				}
			}
			for _, v := range pod.Volumes {
				if v.EmptyDir != nil && (v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.IsZero()) {
					t.Errorf("%s: the folder %s may fill the node's disk", j.Name, v.Name)
				}
			}
		}
	}
}

func BenchmarkManifest(b *testing.B) {
	s, a := aSite(b), anAttempt()
	a.Plan = tidemill.Plan{Image: "i", Command: []string{"c"}, GPUs: 1, CPU: 2, Memory: 1 << 30, Secrets: map[string]string{"A": "a/b"}}
	p := config.Pool{Name: "gpu", Cards: config.Cards{Label: "l", NewestFirst: []string{"a", "b", "c"}}}
	b.ReportAllocs()
	for b.Loop() {
		if s.job(a, p) == nil {
			b.Fatal("no job")
		}
	}
}
