// Command ingress is an ingress for Knative Services that is enough for tests. It watches Knative's
// Ingress objects, proxies by their hosts, paths and splits, and marks them ready. Real clusters
// use Kourier, Contour, Istio or Traefik.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"knative.dev/networking/pkg/client/clientset/versioned"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("the ingress ends", "reason", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	w := newWatcher(client.NetworkingV1alpha1())
	front := &http.Server{Addr: ":8080", Handler: newProxy(&w.table), Protocols: protocols()}
	ready := &http.Server{Addr: ":8081", Handler: w}
	ends := make(chan error, 3)
	go func() { ends <- front.ListenAndServe() }()
	go func() { ends <- ready.ListenAndServe() }()
	go func() { ends <- w.run(ctx, client) }()
	select {
	case err = <-ends:
	case <-ctx.Done():
	}
	// Running requests may end; pods have 30 s for it.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 25*time.Second)
	defer cancel()
	return errors.Join(err, front.Shutdown(last), ready.Shutdown(last))
}

// protocols are HTTP/1.1 and HTTP/2 without TLS, which gRPC needs.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}
