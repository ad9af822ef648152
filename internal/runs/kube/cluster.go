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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/clientcmd/api/latest"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/warmpods"
)

// Options configure a Cluster.
type Options struct {
	Kubeconfig string // path of a file; if empty, the cluster in which this process runs
	Namespace  string // if empty, the namespace of the pod, or of the kubeconfig
	Runs       string // namespace of the attempts' objects; if empty, the same namespace
	Names      tidemill.Names
	Config     func() *config.Config
	Gateway    string                // URL of the gateway for agents in pods
	Image      string                // our own image, which contains the agent
	Withheld   config.Withheld       // Secrets and claims that no run may use
	Warm       *warmpods.Book        // if nil, no attempt gets a waiting pod
	Registerer prometheus.Registerer // may be nil
	Logger     *slog.Logger
}

// Cluster is a connection to the API server.
type Cluster struct {
	o         Options
	log       *slog.Logger
	namespace string // namespace of the install
	runs      string // namespace of the attempts' objects
	http      *http.Client
	clients   clients
	metrics   *metrics
	view      atomic.Pointer[view] // nil if this process does not watch attempts

	stop context.CancelFunc
	all  sync.WaitGroup // goroutines that run until Close
}

// Open reads the address of the API server. It sends no request, so that a process can start while
// the API server is down.
func Open(_ context.Context, o Options) (*Cluster, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	server, namespace, err := locate(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	o.Withheld = append(slices.Clip(o.Withheld), "secret/"+secretPrefix+"*")
	c := &Cluster{o: o, log: o.Logger, namespace: cmp.Or(o.Namespace, namespace)}
	if c.namespace == "" {
		return nil, errors.New("find the namespace: the pod has none: give --namespace")
	}
	c.runs = cmp.Or(o.Runs, c.namespace)
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

// Namespace returns the namespace of the install.
func (c *Cluster) Namespace() string { return c.namespace }

// Close ends all goroutines and waits for them.
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
	defaultNamespace = "default" // namespace for a kubeconfig that names none
)

// locate finds the address of the API server, our credentials, and the namespace.
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

// idleEvery is shorter than the 90 seconds after which client-go closes an idle connection.
const idleEvery = time.Minute

// keepOpen keeps a connection to the API server open, because opening one takes longer than making
// a Job. The answers are ignored.
func (c *Cluster) keepOpen(ctx context.Context) {
	t := time.NewTicker(idleEvery)
	defer t.Stop()
	for {
		c.ping(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (c *Cluster) ping(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, idleEvery/2)
	defer cancel()
	_ = c.clients.batch.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
}

// host returns the address of the API server without credentials in the URL.
func host(server *rest.Config) string {
	if u, err := url.Parse(server.Host); err == nil && u.Host != "" {
		return u.Host
	}
	return server.Host
}

// kubeconfig is the current context of a kubeconfig file. client-go's own package for these files
// brings flags, prompts and merging of files, which a process in a cluster does not need.
type kubeconfig struct {
	dir     string // base of relative paths in the file
	context api.Context
	cluster api.Cluster
	user    api.AuthInfo
}

func readKubeconfig(path string) (*kubeconfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	all := api.NewConfig()
	if err := runtime.DecodeInto(latest.Codec, text, all); err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
	}
	k, err := current(all)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
	}
	k.dir = filepath.Dir(path)
	return k, nil
}

// current returns the objects that the current context names.
func current(all *api.Config) (*kubeconfig, error) {
	if all.CurrentContext == "" {
		return nil, errors.New("it has no current-context: choose one with kubectl config use-context")
	}
	context := all.Contexts[all.CurrentContext]
	if context == nil {
		return nil, fmt.Errorf("it has no context %q, which its current-context names", all.CurrentContext)
	}
	cluster := all.Clusters[context.Cluster]
	if cluster == nil || cluster.Server == "" {
		return nil, fmt.Errorf("it has no server for the cluster %q, which its context %q names", context.Cluster, all.CurrentContext)
	}
	k := &kubeconfig{context: *context, cluster: *cluster}
	if user := all.AuthInfos[context.AuthInfo]; user != nil {
		k.user = *user
	} else if context.AuthInfo != "" {
		return nil, fmt.Errorf("it has no user %q, whom its context %q names", context.AuthInfo, all.CurrentContext)
	}
	if k.user.AuthProvider != nil {
		return nil, fmt.Errorf("its user %q has an auth-provider, which Kubernetes has given up: use exec, a token or a certificate", context.AuthInfo)
	}
	return k, nil
}

// server returns the client configuration for the API server.
func (k *kubeconfig) server() (*rest.Config, error) {
	u := k.user
	c := &rest.Config{Host: k.cluster.Server, DisableCompression: k.cluster.DisableCompression,
		Username: u.Username, Password: u.Password, BearerToken: u.Token, BearerTokenFile: k.path(u.TokenFile), ExecProvider: u.Exec,
		Impersonate: rest.ImpersonationConfig{UserName: u.Impersonate, UID: u.ImpersonateUID, Groups: u.ImpersonateGroups, Extra: u.ImpersonateUserExtra},
		TLSClientConfig: rest.TLSClientConfig{Insecure: k.cluster.InsecureSkipTLSVerify, ServerName: k.cluster.TLSServerName,
			CAFile: k.path(k.cluster.CertificateAuthority), CAData: k.cluster.CertificateAuthorityData,
			CertFile: k.path(u.ClientCertificate), CertData: u.ClientCertificateData, KeyFile: k.path(u.ClientKey), KeyData: u.ClientKeyData}}
	if u.Exec != nil {
		u.Exec.InteractiveMode = api.NeverExecInteractiveMode // no person can answer a prompt
	}
	if k.cluster.ProxyURL != "" {
		proxy, err := url.Parse(k.cluster.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("read the proxy-url of the kubeconfig: %w", err)
		}
		c.Proxy = http.ProxyURL(proxy)
	}
	return c, nil
}

// path returns the path of a file that the kubeconfig names. Relative paths start at its folder.
func (k *kubeconfig) path(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(k.dir, name)
}

// metrics count what a process does in the cluster.
type metrics struct {
	ends, removed, scalings *prometheus.CounterVec
	failures                prometheus.Counter
	replicas                *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_cluster_ends_total",
			Help: "Ends of attempts that this controller reported because no agent could, by reason: config, deadline, deleted, disk, evicted, failed, image, install, node-lost, out-of-memory, preempted, refused, silent or start."}, []string{"reason"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_cluster_removed_total",
			Help: "Jobs that this controller has removed: finished, or orphan, whose attempt has ended or is unknown."}, []string{"reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_cluster_failures_total",
			Help: "Looks at an attempt in the cluster that failed and were tried again."}),
		scalings: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_cluster_scalings_total",
			Help: "Times that this controller has changed how many replicas a scorer has, up or down."}, []string{"direction", "scorer"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tidemill_cluster_scorer_replicas",
			Help: "Replicas that a scorer should have, as this controller sees it."}, []string{"scorer"}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.ends, m.removed, m.failures, m.scalings, m.replicas} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the cluster: %w", err)
	}
	return m, nil
}
