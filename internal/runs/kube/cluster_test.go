package kube

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
)

const wholeKubeconfig = `
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: c, user: u, namespace: models}}
- {name: there, context: {cluster: nowhere, user: u}}
clusters:
- {name: c, cluster: {server: "SERVER", certificate-authority: ca.pem}}
users:
- {name: u, user: {tokenFile: token}}
`

// clientIdentity is the identity of a client, as the server sees it.
type clientIdentity struct{ token, agent string }

func secureServer(t *testing.T) (*httptest.Server, <-chan clientIdentity) {
	t.Helper()
	asked := make(chan clientIdentity, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			asked <- clientIdentity{r.Header.Get("Authorization"), r.UserAgent()}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"PodList","apiVersion":"v1","items":[]}`))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, asked
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A certificate and a token in files next to the kubeconfig are enough to connect. Open connects
// before a request needs it.
func TestOpenByKubeconfig(t *testing.T) {
	s, asked := secureServer(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	dir := writeFiles(t, map[string]string{"ca.pem": string(ca), "token": "hunter2", "config": strings.ReplaceAll(wholeKubeconfig, "SERVER", s.URL)})
	c, err := Open(t.Context(), Options{Kubeconfig: filepath.Join(dir, "config"), Names: tidemill.Names{}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Namespace() != "models" {
		t.Errorf("the namespace is %q", c.Namespace())
	}
	if is := <-asked; is != (clientIdentity{"Bearer hunter2", "tidemill"}) {
		t.Errorf("the API server sees %+v", is)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if c, err = Open(t.Context(), Options{Kubeconfig: filepath.Join(dir, "config"), Namespace: "other"}); err != nil {
		t.Fatal(err)
	}
	if c.Namespace() != "other" {
		t.Errorf("the namespace is %q", c.Namespace())
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// Open succeeds while the API server is down.
func TestOpenWithoutAServer(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	dir := writeFiles(t, map[string]string{"config": strings.ReplaceAll(strings.ReplaceAll(wholeKubeconfig, "SERVER", s.URL), "tokenFile: token", "token: t")})
	text, err := os.ReadFile(filepath.Join(dir, "config"))
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(string(text), ", certificate-authority: ca.pem", "")
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Options{Kubeconfig: filepath.Join(dir, "config")})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// Errors of a kubeconfig contain advice.
func TestBadKubeconfigs(t *testing.T) {
	for want, change := range map[string][2]string{
		`has no current-context`:    {"current-context: here\n", ""},
		`has no context "gone"`:     {"current-context: here", "current-context: gone"},
		`no server for the cluster`: {"current-context: here", "current-context: there"},
		`has no user "v"`:           {"user: u,", "user: v,"},
		`Kubernetes has given up`:   {"{tokenFile: token}", "{auth-provider: {name: gcp}}"},
		`read the proxy-url`:        {`server: "SERVER"`, `server: "SERVER", proxy-url: "a b://"`},
		`cannot unmarshal`:          {"users:", "users: 3\nothers:"},
		`open the clients`:          {"certificate-authority: ca.pem", "certificate-authority-data: aGFsbG8="},
		`no such file`:              {"", ""}, // ca.pem is missing
	} {
		dir := writeFiles(t, map[string]string{"config": strings.Replace(strings.ReplaceAll(wholeKubeconfig, "SERVER", "https://127.0.0.1:1"), change[0], change[1], 1)})
		if strings.Contains(change[0], "SERVER") {
			dir = writeFiles(t, map[string]string{"config": strings.Replace(wholeKubeconfig, change[0], change[1], 1)})
		}
		if c, err := Open(t.Context(), Options{Kubeconfig: filepath.Join(dir, "config")}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
			if err == nil {
				_ = c.Close(context.Background())
			}
		}
	}
	if _, err := Open(t.Context(), Options{Kubeconfig: filepath.Join(t.TempDir(), "gone")}); err == nil || !strings.Contains(err.Error(), "read the kubeconfig") {
		t.Errorf("got %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Open(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "name a kubeconfig with --kubeconfig") {
		t.Errorf("got %v", err)
	}
}
