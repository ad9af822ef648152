//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestCluster starts one cluster and checks everything that Tidemill's tests need from it.
func TestCluster(t *testing.T) {
	u := newRig(t).up(t, "tested", "--gpus", "2")
	u.importProbe(t)
	u.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: one}}")
	u.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: two}}")
	t.Run("a name is resolved", u.resolves)
	t.Run("a pod reaches this machine", u.reachesHost)
	t.Run("a Service is reached from a pod and from here", u.serves)
	t.Run("a Knative Service wakes for who is outside", u.wakes)
	t.Run("a Knative Service wakes for a pod of another namespace", u.wakesForPod)
	t.Run("two cards carry two Jobs", u.schedules)
}

func (u *running) resolves(t *testing.T) {
	if got := u.inPod(t, "one", "lookup", "lookup", "kubernetes.default"); got != "[10.96.0.1]" {
		t.Errorf("a pod resolves the API server's Service to %s", got)
	}
}

func (u *running) reachesHost(t *testing.T) {
	listener, err := net.Listen("tcp", net.JoinHostPort(u.Host, "0"))
	check(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "this is the host")
	})}
	go server.Serve(listener)
	defer server.Close()
	got := u.inPod(t, "one", "to-host", "get", "http://"+listener.Addr().String())
	if !strings.Contains(got, "this is the host") {
		t.Errorf("a pod that asks this machine gets %q", got)
	}
}

const aServer = `
{apiVersion: v1, kind: Pod, metadata: {name: server, namespace: one, labels: {app: server}}, spec: {containers: [{
  name: probe, image: "dev.local/probe:v1", readinessProbe: {periodSeconds: 1, httpGet: {port: 8080}}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: server, namespace: one}, spec: {
  type: NodePort, selector: {app: server}, ports: [{port: 80, targetPort: 8080, nodePort: 31081}]}}
`

func (u *running) serves(t *testing.T) {
	u.apply(t, aServer)
	u.wait(t, "pod/server", "condition=Ready", "--namespace=one")
	if got := u.inPod(t, "two", "to-service", "get", "http://server.one"); !strings.Contains(got, "hello from server as server.one") {
		t.Errorf("a pod that asks a Service of another namespace gets %q", got)
	}
	if got := fetch(t, "http://"+u.Node+":31081", ""); !strings.Contains(got, "hello from server") {
		t.Errorf("who asks the node's port gets %q", got)
	}
}

const aFunction = `
{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: %s, namespace: one}, spec: {template: {spec: {containers: [{
  image: "dev.local/probe:v1", ports: [{containerPort: 8080}], readinessProbe: {periodSeconds: 1, httpGet: {path: /}}}]}}}}`

// asleep makes a Knative Service and waits until it has no pod.
func (u *running) asleep(t *testing.T, name string) {
	t.Helper()
	u.apply(t, aFunction, name)
	u.wait(t, "ksvc/"+name, "condition=Ready", "--namespace=one")
	check(t, until(within(t), func() error {
		if pods := u.pods(t, name); pods != "" {
			return fmt.Errorf("%s still has %s", name, pods)
		}
		return nil
	}))
}

func (u *running) pods(t *testing.T, function string) string {
	t.Helper()
	// The proxy next to a function takes half a minute to end, so a pod that is being deleted does
	// not count.
	const staying = "--output=go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}"
	return u.kubectl(t, "", "get", "pods", "--namespace=one", staying, "--selector=serving.knative.dev/service="+function)
}

func (u *running) wakes(t *testing.T) {
	u.asleep(t, "hello")
	if got := fetch(t, u.Ingress, "hello.one."+u.Domain); !strings.Contains(got, "hello from hello-00001-deployment") {
		t.Errorf("who asks a sleeping function gets %q", got)
	}
	if u.pods(t, "hello") == "" {
		t.Error("it answered without a pod")
	}
}

func (u *running) wakesForPod(t *testing.T) {
	u.asleep(t, "local")
	got := u.inPod(t, "two", "to-function", "get", "http://local.one.svc.cluster.local")
	if !strings.Contains(got, "200 OK: hello from local-00001-deployment") {
		t.Errorf("a pod that asks a sleeping function gets %q", got)
	}
}

const aJob = `
{apiVersion: batch/v1, kind: Job, metadata: {name: job-%d, namespace: one}, spec: {template: {metadata: {labels: {app: card}}, spec: {
  restartPolicy: Never, terminationGracePeriodSeconds: 1, nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB},
  containers: [{name: probe, image: "dev.local/probe:v1", resources: {limits: {nvidia.com/gpu: 1}}}]}}}}`

func (u *running) schedules(t *testing.T) {
	for i := range 2 {
		u.apply(t, aJob, i)
	}
	const ready = "jsonpath={.status.phase}=Running"
	u.wait(t, "pod", ready, "--selector=app=card", "--namespace=one")
	u.apply(t, aJob, 2)
	u.wait(t, "pod", "condition=PodScheduled=false", "--selector=job-name=job-2", "--namespace=one")
	why := u.kubectl(t, "", "get", "pod", "--namespace=one", "--selector=job-name=job-2",
		`--output=jsonpath={.items[0].status.conditions[?(@.type=="PodScheduled")].message}`)
	if !strings.Contains(why, "Insufficient nvidia.com/gpu") {
		t.Errorf("the third Job waits because of %q", why)
	}
	u.kubectl(t, "", "delete", "job", "job-0", "--namespace=one")
	u.wait(t, "pod", ready, "--selector=job-name=job-2", "--namespace=one")
}

// fetch requests a URL for a host and returns the body of a 200.
func fetch(t *testing.T, url, host string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t), http.MethodGet, url, nil)
	check(t, err)
	request.Host = host
	answer, err := http.DefaultClient.Do(request)
	check(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	check(t, err)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s for %s: %s: %s", url, host, answer.Status, body)
	}
	return string(body)
}
