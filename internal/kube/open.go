package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/warm"
)

// Options say which cluster, and what its pods have to know.
type Options struct {
	Kubeconfig string // a file; empty is the cluster that this process runs in
	Namespace  string // empty is the one of the pod, or of the kubeconfig
	Names      tidemill.Names
	Config     func() *config.Config
	Gateway    string                // URL that agents in pods reach the gateway at
	Image      string                // ours, which brings the agent
	Withheld   config.Withheld       // from runs, whatever their recipes say
	Warm       *warm.Book            // nil is none: no pod is taken over
	Registerer prometheus.Registerer // nil is none
	Logger     *slog.Logger
}

// Cluster is an open way to the API server.
type Cluster struct {
	o         Options
	log       *slog.Logger
	namespace string
	http      *http.Client
	clients   clients
	metrics   *metrics
	view      atomic.Pointer[view] // nil where this process watches no attempts

	stop context.CancelFunc
	all  sync.WaitGroup // what runs until Close
}

// Open reads where the API server is. It asks nothing of it yet: a process that
// starts while it is away shall start.
func Open(_ context.Context, o Options) (*Cluster, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	server, namespace, err := locate(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	c := &Cluster{o: o, log: o.Logger, namespace: cmp.Or(o.Namespace, namespace)}
	if c.namespace == "" {
		return nil, errors.New("find the namespace: the pod has none: give --namespace")
	}
	if c.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, err
	}
	if err := c.connect(server); err != nil {
		return nil, fmt.Errorf("open the clients of the API server at %s: %w", host(server), err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.all.Go(func() { c.keepOpen(ctx) })
	return c, nil
}

// Namespace is the one that everything lies in.
func (c *Cluster) Namespace() string { return c.namespace }

// Close ends what was opened, and waits.
func (c *Cluster) Close(ctx context.Context) error {
	c.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.all.Wait()
	}()
	defer c.http.CloseIdleConnections()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the way to the cluster: %w", context.Cause(ctx))
	}
}

const (
	podNamespace     = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	defaultNamespace = "default" // of a kubeconfig that names none
)

// locate finds the API server, who we are to it, and the namespace that goes
// with that.
func locate(path string) (*rest.Config, string, error) {
	if path == "" {
		server, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			err = errors.New("this process runs in no pod: name a kubeconfig with --kubeconfig")
		}
		if err != nil {
			return nil, "", err
		}
		namespace, err := os.ReadFile(podNamespace)
		return server, strings.TrimSpace(string(namespace)), err
	}
	file, err := readKubeconfig(path)
	if err != nil {
		return nil, "", err
	}
	server, err := file.server()
	return server, cmp.Or(file.context.Namespace, defaultNamespace), err
}

// idleEvery is shorter than the 90 seconds after which client-go lets go of a
// connection that nobody uses.
const idleEvery = time.Minute

// keepOpen keeps a connection to the API server: to make one takes longer than
// to make a Job. What is answered does not matter, nor whether.
func (c *Cluster) keepOpen(ctx context.Context) {
	t := time.NewTicker(idleEvery)
	defer t.Stop()
	for {
		c.knock(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (c *Cluster) knock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, idleEvery/2)
	defer cancel()
	_ = c.clients.batch.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
}

// host is the API server without what a URL could give away of us.
func host(server *rest.Config) string {
	if u, err := url.Parse(server.Host); err == nil && u.Host != "" {
		return u.Host
	}
	return server.Host
}
