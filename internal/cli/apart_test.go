//go:build slow

package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/broker/embedded"
)

const configApart = `version: 1
name: mill
pools:
  gpu: {slots: 4, nodes: {gpu: "yes"}}
recipes:
  intent:
    when: {type: bot-created}
    run:
      image: registry.example/trainer:1
      command: [sh, -c, 'echo "{\"accuracy\": 0.9}" > $TIDEMILL_OUT/metrics.json; echo CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ== | base64 -d > $TIDEMILL_OUT/model.onnx']
      pool: gpu
      gpus: 1
    makes: {model: "intent/{key}"}
    gate: [metrics.accuracy >= 0.5]
`

// apart is an install with one process for each role, as in a cluster. They share Kafka, Redis, the
// object store, a secret and an API server. The test is the scheduler and the kubelet.
type apart struct {
	*testing.T
	dir, url string
	flags    []string
	api      *jobServer
}

// role starts a role and returns its HTTP address.
func (a *apart) role(args ...string) string {
	a.Helper()
	var out, stderr syncBuffer
	child := exec.Command(os.Args[0], append(append([]string{"serve"}, args...), a.flags...)...)
	child.Env = append(os.Environ(), asMain+"=1")
	child.Stdout, child.Stderr = &out, &stderr
	if err := child.Start(); err != nil {
		a.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = child.Wait()
	}()
	a.Cleanup(func() {
		_ = child.Process.Signal(os.Interrupt)
		<-ended
		if code := child.ProcessState.ExitCode(); code != 0 || a.Failed() {
			a.Errorf("serve %s ended with %d\n%s", strings.Join(args, " "), code, &stderr)
		}
	})
	at := ""
	eventually(a.T, func() bool {
		select {
		case <-ended:
			a.Fatalf("serve %s ended\n%s", strings.Join(args, " "), &stderr)
		default:
		}
		if found := httpAt.FindStringSubmatch(out.String()); found != nil {
			at = found[1]
		}
		return at != ""
	})
	return at
}

// inFront returns one address for several functions, as an ingress does.
func inFront(t *testing.T, functions map[string]string) string {
	t.Helper()
	mux := http.NewServeMux()
	for name, at := range functions {
		to, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
		mux.Handle("/"+name, proxy)
		mux.Handle("/"+name+"/", proxy)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func newApart(t *testing.T) *apart {
	a := &apart{T: t, dir: t.TempDir()}
	s, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	secret := leave(t, base64.StdEncoding.EncodeToString([]byte("01234567890123456789012345678901"))+"\n", a.dir, "secret")
	a.flags = []string{"-f", leave(t, configApart, a.dir, "tidemill.yaml"), "--kafka", s.Kafka(), "--redis", s.Redis(),
		"--store", "file://" + filepath.Join(a.dir, "store"), "--run-secret", secret, "--listen", "127.0.0.1:0"}
	a.api = startJobServer(t, a.dir)
	return a
}

// An event that is accepted over HTTP becomes a Job at the API server. The agent in its pod runs
// the attempt through the gateway; the new version is judged and promoted. Each role is a separate
// process, and the gateway refuses callers without a token.
func TestTheLoopWithEveryRoleApart(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	file := filepath.Join(a.dir, "access.yaml")
	token := func(name, role string) string {
		return leave(t, ok(t, "token", "new", name, "--role", role, "--file", file), a.dir, name)
	}
	publisher, reader := token("crm", "publish"), token("ana", "read")
	a.url = a.role("gateway", "--access", file, "--drain-delay", "0s")
	inCluster := []string{"--kubeconfig", a.api.kubeconfig, "--agents-at", a.url, "--image", "registry.example/tidemill:1"}
	functions := map[string]string{"train": a.role(append([]string{"function", "train"}, inCluster...)...),
		"promote": a.role("function", "promote"), "forget": a.role("function", "forget")}
	a.refusesStrangers(functions)
	a.role("dispatcher", "--functions", inFront(t, functions))
	a.role(append([]string{"controller"}, inCluster...)...)

	ok(t, "publish", "bot-created", "--subject", "bot-1", "--id", "1", "--url", a.url, "--token-file", publisher)
	job := a.api.next(t)
	if job.Labels["tidemill.dev/install"] != "mill" || job.Labels["tidemill.dev/recipe"] != "intent" || job.Spec.Template.Spec.NodeSelector["gpu"] != "yes" {
		t.Errorf("the Job is %v, for nodes %v", job.Labels, job.Spec.Template.Spec.NodeSelector)
	}
	a.beKubelet(job)
	eventually(t, func() bool {
		return strings.Contains(call(t, "", "models", "show", "intent/bot-1", "--url", a.url, "--token-file", reader).out, "champion")
	})
	mention(t, "runs", ok(t, "runs", "--url", a.url, "--token-file", reader), "intent", "bot-1", "succeeded")
	eventually(t, func() bool { return a.api.deleted(job.Name) })
	if n := a.api.made(); n != 1 {
		t.Errorf("%d Jobs were made for one event", n)
	}
}

// refusesStrangers calls our functions without the secret and with a wrong one.
func (a *apart) refusesStrangers(functions map[string]string) {
	a.Helper()
	for path, at := range map[string]string{"/train/intent": functions["train"], "/promote": functions["promote"], "/forget": functions["forget"]} {
		for _, header := range []string{"", "Bearer wrong"} {
			req, err := http.NewRequestWithContext(a.Context(), http.MethodPost, at+path, strings.NewReader("{}"))
			if err != nil {
				a.Fatal(err)
			}
			req.Header.Set("Authorization", header)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				a.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), "--run-secret") {
				a.Errorf("%s with %q: %s %s", path, header, res.Status, text)
			}
		}
		for _, probe := range []string{"/healthz", "/readyz", "/metrics"} {
			eventually(a.T, func() bool {
				res, err := http.Get(at + probe)
				if err != nil {
					return false
				}
				res.Body.Close()
				return res.StatusCode == http.StatusOK
			})
		}
	}
}

// beKubelet runs the agent with only the environment of the manifest's container.
func (a *apart) beKubelet(job *jobMade) {
	a.Helper()
	binary := filepath.Join(a.dir, "tidemill-agent")
	build := exec.Command("go", "build", "-o", binary, "tidemill.dev/cmd/tidemill-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		a.Fatalf("build the agent: %v\n%s", err, out)
	}
	pod := job.Spec.Template.Spec
	if pod.Containers[0].Image != "registry.example/trainer:1" || pod.InitContainers[0].Image != "registry.example/tidemill:1" {
		a.Errorf("the images are %s and %s", pod.Containers[0].Image, pod.InitContainers[0].Image)
	}
	work := a.TempDir()
	agent := exec.Command(binary, "run")
	agent.Env = []string{"PATH=" + os.Getenv("PATH")}
	for _, e := range pod.Containers[0].Env {
		value := e.Value
		switch {
		case e.Name == "TIDEMILL_AGENT_WORK":
			value = work
		case e.Name == "TIDEMILL_AGENT_INDEX":
			value = "" // the Job is not indexed
		case e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil: // it is made after the Job
			of := e.ValueFrom.SecretKeyRef
			eventually(a.T, func() bool { value = a.api.secret(of.Name, of.Key); return value != "" })
		case e.ValueFrom != nil:
			value = "node-1"
		}
		agent.Env = append(agent.Env, e.Name+"="+value)
	}
	if out, err := agent.CombinedOutput(); err != nil {
		a.Fatalf("the agent ended: %v\n%s", err, out)
	}
}

// A role that lacks flags is refused before it opens anything.
func TestRolesSayWhatTheyLack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := leave(t, strings.Repeat("x", 32), dir, "secret")
	for args, says := range map[string]string{
		"gateway --functions ftp://x":                                              "--functions: give a URL such as",
		"gateway --agents-at http://u:p@x":                                         "without a user",
		"controller --withhold configmap/x":                                        "--withhold: \"configmap/x\" is not an object that can be withheld",
		"function":                                                                 "NAME is missing; name the function: train, promote, forget",
		"function trian":                                                           "did you mean train?",
		"function train --kafka x:1":                                               "give --redis and --store",
		"function train --kafka x:1 --redis x:1 --store s3://x":                    "give --run-secret, the same file as the dispatcher's",
		"dispatcher --kafka x:1 --functions http://f":                              "give --run-secret",
		"dispatcher --kafka x:1 --functions knative --run-secret " + secret:        "give --kubernetes or --kubeconfig",
		"controller --kafka x:1 --kubernetes":                                      "Kubernetes also needs --redis, --store, --run-secret, --agents-at, --image",
		"controller --kafka x:1 --kubernetes --redis x:1 --store s3://x --image i": "Kubernetes also needs --run-secret, --agents-at",
		"function train --kafka x:1 --redis x:1 --store s3://x --kubernetes --run-secret " + secret: "Kubernetes also needs --agents-at, --image",
	} {
		if o := call(t, "", append([]string{"serve"}, strings.Fields(args)...)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("serve %s: exit %d, %s", args, o.code, o.err)
		}
	}
}

// Every role refuses a config that uses withheld Secrets or another namespace.
func TestWhatAPlaceWithholds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, "version: 1\nrecipes:\n  r:\n    run: {image: i, command: [c], secrets: {T: tidemill-run-secret/run-secret}}\ntriggers:\n  t:\n    when: {type: a}\n    to: {service: shop/prices}\n", dir, "c.yaml")
	for _, role := range []string{"gateway", "dispatcher", "controller"} {
		o := call(t, "", "serve", role, "--kafka", "127.0.0.1:1", "-f", file, "--namespace", "ml", "--withhold", "secret/tidemill-*")
		for _, want := range []string{"c.yaml:4: recipes.r.run.secrets.T: the Secret \"tidemill-run-secret\" belongs to the install", "c.yaml:8: triggers.t.to.service: \"shop/prices\" is in another"} {
			if o.code != exitFailed || !strings.Contains(o.err, want) {
				t.Errorf("%s: exit %d, %s", role, o.code, o.err)
			}
		}
	}
}

func TestASecretThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := append(servers(t, embedded.Options{Dir: dir}), "-f", leave(t, "version: 1\n", dir, "c.yaml"), "--store", "file://"+dir+"/store")
	for name, text := range map[string]string{"short": "x", "long": strings.Repeat("x", 40), "coded": base64.StdEncoding.EncodeToString([]byte("short"))} {
		file := leave(t, text, dir, name)
		o := call(t, "", append([]string{"serve", "function", "promote", "--run-secret", file}, flags...)...)
		if o.code != exitFailed || !strings.Contains(o.err, "openssl rand -base64 32") || !strings.Contains(o.err, fmt.Sprintf("%s has %d bytes", file, len(text))) {
			t.Errorf("%s: exit %d, %s", name, o.code, o.err)
		}
	}
}
