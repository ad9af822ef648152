//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/config"
	"tidemill.dev/e2e/kube/sandbox"
	"tidemill.dev/internal/gateway/client"
)

// The names of the installed objects.
const (
	namespace = "mill"
	release   = "mill"
	install   = "mill" // the name in testdata/tidemill.yaml
	bucket    = "mill"
	gpus      = 8
	gpuLabel  = "e2e.tidemill.dev/gpus"
)

// closeWithin is the time limit for tearing down one part.
const closeWithin = time.Minute

// Paths in the repository, from this folder.
const (
	program     = "../../bin/image/tidemill" // the same program as in the image
	messagesDir = "../../examples/intents/data/bot-shop"
)

// world is a cluster with Tidemill in it, and the servers that it uses.
type world struct {
	dir     string // folder of the test's files
	name    string // name of the sandbox
	images  imageFiles
	sandbox *sandbox.Sandbox
	server  *apiServer
	kafka   *realservers.Kafka
	redis   *realservers.Redis
	s3      *realservers.S3
	helm    string    // path of the program
	seen    *recorder // started before the chart is installed
	door    *client.Gateway
	token   config.Secret // operator's token
	journal *journal

	closers []func() error // closers in the order of opening
}

// open starts everything. The returned world must be closed, also after an error.
func open(ctx context.Context) (*world, error) {
	w := &world{name: fmt.Sprint("e2e-", os.Getpid())} // so that two test runs can have their own sandboxes
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"a folder", w.folder},
		{"the cluster, the images and the chart's helm", w.prepare},
		{"the API server", w.reach},
		{"Kafka, Redis and the store", w.servers},
		{"the images in the cluster", w.load},
		{"the GPUs", w.label},
		{"the namespace", w.space},
		{"Tidemill", w.install},
		{"the gateway", w.dial},
		{"the streams", w.follow},
		{"what models learn from", w.teach},
	} {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return w, fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", step.what, time.Since(began).Round(100*time.Millisecond))
	}
	return w, nil
}

func (w *world) folder(context.Context) (err error) {
	if w.dir, err = os.MkdirTemp("", "tidemill-e2e-"); err == nil {
		w.later(func() error { return os.RemoveAll(w.dir) })
	}
	return err
}

// prepare starts the cluster, and builds images and helm meanwhile.
func (w *world) prepare(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		all  sync.WaitGroup
		errs [3]error
	)
	for i, do := range []func(context.Context) error{w.up, w.build, w.findHelm} {
		all.Go(func() {
			if errs[i] = do(ctx); errs[i] != nil {
				cancel() // the other goroutines need not go on
			}
		})
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

func (w *world) build(ctx context.Context) (err error) {
	w.images, err = buildImages(ctx)
	return err
}

func (w *world) findHelm(ctx context.Context) (err error) {
	w.helm, err = buildHelm(ctx)
	return err
}

func (w *world) up(ctx context.Context) error {
	progress, err := os.Create(filepath.Join(w.dir, "sandbox.log"))
	if err != nil {
		return err
	}
	w.later(progress.Close)
	if w.sandbox, err = sandbox.Start(ctx, sandbox.Options{Name: w.name, GPUs: gpus, Kwok: true, Progress: progress}); err != nil {
		text, _ := os.ReadFile(progress.Name())
		return fmt.Errorf("%w\n%s", err, text)
	}
	w.later(w.sandbox.Close)
	return nil
}

func (w *world) reach(context.Context) (err error) {
	w.server, err = dialServer(w.sandbox.Kubeconfig, "")
	return err
}

// servers starts the servers on the address at which pods reach this machine. The sandbox has made
// that address.
func (w *world) servers(ctx context.Context) (err error) {
	if w.kafka, err = realservers.StartKafka(ctx, realservers.KafkaOptions{Host: w.sandbox.Host}); err != nil {
		return err
	}
	w.later(w.kafka.Close)
	if w.redis, err = realservers.StartRedisOn(ctx, w.sandbox.Host); err != nil {
		return err
	}
	w.later(w.redis.Close)
	if w.s3, err = realservers.StartS3On(ctx, w.sandbox.Host); err != nil {
		return err
	}
	w.later(w.s3.Close)
	return nil
}

func (w *world) load(ctx context.Context) error {
	if !w.sandbox.Own() {
		return nil // the images have been pushed by the cluster's owner
	}
	for _, file := range w.images {
		if err := w.sandbox.Import(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// label labels the nodes that have GPUs.
func (w *world) label(ctx context.Context) error {
	nodes, err := list(ctx, w.server.core, "", "nodes", &corev1.NodeList{})
	if err != nil {
		return err
	}
	found := false
	for _, n := range nodes.Items {
		if q := n.Status.Allocatable["nvidia.com/gpu"]; !q.IsZero() {
			found = true
			if err := merge(ctx, w.server.core, "", "nodes", n.Name, `{"metadata":{"labels":{"`+gpuLabel+`":"yes"}}}`); err != nil {
				return err
			}
		}
	}
	if !found {
		return errors.New("no node has an nvidia.com/gpu")
	}
	return nil
}

func (w *world) space(ctx context.Context) (err error) {
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := create(ctx, w.server.core, "", "namespaces", made); err != nil {
		return err
	}
	if w.seen, err = record(ctx, w.server, namespace); err != nil {
		return err
	}
	w.later(func() error { w.seen.close(); return nil })
	return nil
}

// dial reaches the gateway by a node port that the test creates.
func (w *world) dial(ctx context.Context) error {
	at, err := w.nodePort(ctx)
	if err != nil {
		return err
	}
	way, err := forwardTo(at)
	if err != nil {
		return err
	}
	w.later(way.close)
	secret, err := find(ctx, w.server.core, namespace, "secrets", release+"-tokens", &corev1.Secret{})
	if err != nil {
		return fmt.Errorf("read the operator's token: %w", err)
	}
	w.token = config.NewSecret(string(secret.Data["operator"]))
	dialing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := retryUntil(dialing, func(ctx context.Context) (err error) {
		w.door, err = client.Dial(ctx, client.Options{URL: way.url(), Token: func() (config.Secret, error) { return w.token, nil }})
		return err
	}); err != nil {
		return err
	}
	w.later(func() error { w.door.Close(); return nil })
	return nil
}

func (w *world) nodePort(ctx context.Context) (string, error) {
	door := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "e2e-door"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 8080}},
			Selector: map[string]string{labelComponent: "gateway", labelRelease: release}}}
	if err := create(ctx, w.server.core, namespace, "services", door); err != nil {
		return "", err
	}
	made, err := find(ctx, w.server.core, namespace, "services", door.Name, &corev1.Service{})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s:%d", w.sandbox.Node, made.Spec.Ports[0].NodePort), nil
}

func (w *world) follow(ctx context.Context) (err error) {
	if w.journal, err = read(ctx, w.kafka.Addr(), install, "events", "facts", "scored", "dead-letters"); err != nil {
		return err
	}
	w.later(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		return w.journal.close(ctx)
	})
	return nil
}

// teach commits the messages from which every model learns, with the command line, as users do.
func (w *world) teach(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, program, "data", "put", "bots/shop", messagesDir)
	cmd.Env = append(os.Environ(), "TIDEMILL_URL="+w.door.URL(), "TIDEMILL_TOKEN="+w.token.Reveal())
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tidemill data put: %w: %s", err, said)
	}
	return nil
}

func (w *world) later(do func() error) { w.closers = append(w.closers, do) }

// close closes all parts, the last first.
func (w *world) close() error {
	var errs []error
	for i := range w.closers {
		errs = append(errs, w.closers[len(w.closers)-1-i]())
	}
	return errors.Join(errs...)
}
