package platform

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/triggers/deliver"
)

// What is not there yet is waited for. A service of another namespace never is, so
// that its events fail with words, and do not wait for ever.
func TestAServiceOfAnotherNamespaceIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := config.Parse("c.yaml", []byte("version: 1\ntriggers: {t: {when: {type: a}, to: {service: shop/prices}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, Options{Config: conf, Embedded: &embedded.Options{}, OwnStreams: true, Cluster: &ClusterOptions{Kubeconfig: kubeconfig, Namespace: "ml"}})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := p.openServices(ctx); err != nil {
		t.Fatal(err)
	}
	for service, waits := range map[string]bool{"prices": true, "ml/prices": true, "shop/prices": false} {
		at, err := p.resolve(t.Context(), config.Target{Service: service})
		if err == nil || errors.Is(err, deliver.ErrNotYet) != waits {
			t.Errorf("%s: %v, %v", service, at, err)
		}
		if !waits && !strings.Contains(err.Error(), "give the trigger its url, such as http://prices.shop.svc.cluster.local") {
			t.Errorf("%s: %v", service, err)
		}
	}
}
